//! How a pipeline ends: all its processes are killed at once, and what is there then is looked at; others drain the rest; and all is
//! read again out of the bucket.

use super::check::{self, Found, Outputs};
use super::workers::Order;
use super::{Summary, goes_on, outputs, summary};
use crate::clock::{Nanos, now};
use crate::fleet::{PATIENCE, POLL, connect};
use crate::history::Logs;
use crate::stage::Stage;
use millpond_sdk::IsolationLevel;
use std::collections::BTreeMap;

/// Output and offsets at one time, with no transaction open.
struct Picture {
    visible: Outputs,
    written: Outputs,
    offsets: BTreeMap<u16, u64>,
}

/// A pipeline whose processes were killed.
pub(crate) struct Halted {
    at: Nanos,
    picture: Picture,
}

/// Kills all workers at once, and looks at what they leave, once what they had open is aborted.
///
/// # Errors
/// It does not come to that.
pub(crate) async fn halt(stage: &mut Stage) -> Result<Option<Halted>, String> {
    goes_on(stage).await?;
    let at = now();
    let Some(pipeline) = &mut stage.pipeline else { return Ok(None) };
    pipeline.workers.end(Order::KillForGood).await?;
    stage.tell("all workers are killed");
    Ok(Some(Halted { at, picture: picture(stage).await? }))
}

async fn picture(stage: &Stage) -> Result<Picture, String> {
    let client = stage.fleet.connect().await?;
    outputs::wait_until_settled(&client).await?;
    let offsets = outputs::offsets(stage).await?;
    let visible = outputs::read(&client, IsolationLevel::ReadCommitted).await?;
    let written = outputs::read(&client, IsolationLevel::ReadUncommitted).await?;
    Ok(Picture { visible, written, offsets })
}

/// Judges what was left, lets new workers come to the input's end, and judges again; what it came to, and the output for `restored`.
///
/// # Errors
/// The workers do not come to the end.
pub(crate) async fn drain(stage: &mut Stage, halted: Halted, logs: &Logs) -> Result<(Summary, Outputs), String> {
    judge(stage, &halted.picture, logs, false);
    stage.tell("draining");
    let ends: BTreeMap<u16, u64> =
        logs.iter().map(|(partition, log)| (*partition, log.last().map_or(0, |(offset, _)| offset + 1))).collect();
    let pipeline = stage.pipeline.as_mut().ok_or("there is no pipeline")?;
    pipeline.start_again();
    let mut last = String::new();
    let drained = tokio::time::timeout(PATIENCE * 2, async {
        let mut poll = tokio::time::interval(POLL * 10);
        loop {
            poll.tick().await;
            match outputs::offsets_now(stage).await {
                Ok(offsets) if offsets == ends => break,
                Ok(offsets) => last = format!("{offsets:?}"),
                Err(error) => last = error,
            }
        }
    });
    // Where it stays is for the checker to say.
    if drained.await.is_err() {
        stage.broken.push(format!("the pipeline does not come to the end {ends:?} of its input; last seen: {last}"));
    }
    let pipeline = stage.pipeline.as_mut().ok_or("there is no pipeline")?;
    pipeline.workers.end(Order::End).await?;
    let picture = picture(stage).await?;
    judge(stage, &picture, logs, true);
    let Some(pipeline) = &stage.pipeline else { return Err("there is no pipeline".to_owned()) };
    let count = |outputs: &Outputs| outputs.values().map(|log| log.len() as u64).sum::<u64>();
    let (outputs, written) = (count(&picture.visible), count(&picture.written));
    let summary = Summary {
        inputs: logs.values().map(|log| log.len() as u64).sum(),
        outputs,
        hidden: written.saturating_sub(outputs),
        ..summary(&pipeline.ledger, halted.at)
    };
    let broken = pipeline.ledger.broken();
    stage.broken.extend(broken);
    stage.expect(summary.hidden > 0 && summary.aborted.0 > 0, || {
        "nothing was aborted with outputs in the log: the run shows nothing about aborts".to_owned()
    });
    stage.expect(summary.by_sdk > 0 && summary.by_sdk < summary.committed, || {
        format!(
            "workers of one kind committed nothing: {} of {} transactions are the SDK's",
            summary.by_sdk, summary.committed
        )
    });
    Ok((summary, picture.visible))
}

fn judge(stage: &mut Stage, picture: &Picture, logs: &Logs, drained: bool) {
    let Some(pipeline) = &stage.pipeline else { return };
    let fates = pipeline.ledger.fates();
    let Picture { visible, written, offsets } = picture;
    let found = Found { inputs: logs, visible, written, offsets, fates: &fates, drained };
    let when = if drained { "after the drain" } else { "after the halt" };
    let lines: Vec<String> = check::check(&found).lines().map(|line| format!("pipeline, {when}: {line}")).collect();
    stage.broken.extend(lines);
}

/// What the bucket alone gives back: the same output, for a reader of committed records.
///
/// # Errors
/// It cannot be read.
pub(crate) async fn restored(stage: &Stage, before: &Outputs) -> Result<Vec<String>, String> {
    let client = connect(&stage.fleet.bootstrap()).await?;
    let after = outputs::read(&client, IsolationLevel::ReadCommitted).await?;
    let mut differences = Vec::new();
    for (partition, before) in before {
        if after.get(partition) != Some(before) {
            let count = after.get(partition).map_or(0, Vec::len);
            differences.push(format!("output {partition}: records before and after {:?}", (before.len(), count)));
        }
    }
    Ok(differences)
}
