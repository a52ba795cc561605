//! The story of a run, for people.

use millpond_core::replica::Input;

/// An input in one line.
pub(super) fn brief(input: &Input) -> String {
    match input {
        Input::Push(push) => {
            let spans: Vec<String> = push
                .batches
                .iter()
                .map(|placed| {
                    format!(
                        "{}..{}e{}",
                        placed.batch.base_offset(),
                        placed.batch.end_offset(),
                        placed.batch.leader_epoch()
                    )
                })
                .collect();
            format!(
                "Push e{} from {} nonce {} prev {} {:?} hw {} tiered {} {spans:?}",
                push.head.epoch,
                push.head.leader.rid,
                push.nonce,
                push.prev_offset,
                push.prev_epoch,
                push.head.hw,
                push.head.tiered_end
            )
        }
        Input::Produce { batch, .. } => format!("Produce {:?}", batch.producer()),
        Input::Installed(installed) => format!("Installed {}", installed.at_end.end),
        Input::Rebuilt(state) => format!("Rebuilt {}", state.end),
        Input::Assigned(assigned) => format!(
            "Assigned r{} e{} leader {:?} isr {:?} live {:?}",
            assigned.revision,
            assigned.record.epoch,
            assigned.record.leader.map(|leader| (leader.rid.to_string(), leader.inc.0)),
            assigned.record.isr.iter().map(ToString::to_string).collect::<Vec<_>>(),
            assigned.live.iter().map(|live| (live.rid.to_string(), live.inc.0)).collect::<Vec<_>>()
        ),
        other => format!("{other:?}"),
    }
}
