//! A run in which all holds, and one change after the other that must be found.

use super::*;

const PARTITIONS: u16 = 2;

struct Case {
    inputs: Logs,
    visible: Outputs,
    written: Outputs,
    offsets: BTreeMap<u16, u64>,
    fates: BTreeMap<Txn, Fate>,
    drained: bool,
}

fn txn(number: u32) -> Txn {
    Txn { worker: 1, life: 2, number }
}

fn origin(number: u32, txn: Txn) -> Origin {
    Origin { partition: 0, offset: u64::from(number), id: RecordId { writer: 0, partition: 0, number }, txn }
}

impl Case {
    /// Six inputs of one partition: 0 to 2 in the first transaction, 3 to 5 in the third; the second one was aborted.
    fn sound() -> Case {
        let log = (0..6).map(|number| (u64::from(number), Content::Record(origin(number, txn(0)).id)));
        let mut case = Case {
            inputs: Logs::from([(0, log.collect())]),
            visible: Outputs::from([(0, Vec::new()), (1, Vec::new())]),
            written: Outputs::from([(0, Vec::new()), (1, Vec::new())]),
            offsets: BTreeMap::from([(0, 6)]),
            fates: BTreeMap::from([(txn(0), Fate::Committed(3)), (txn(1), Fate::Aborted), (txn(2), Fate::Asked)]),
            drained: true,
        };
        for (txn, numbers) in [(txn(0), 0..3), (txn(1), 3..6), (txn(2), 3..6)] {
            for number in numbers {
                case.write(origin(number, txn));
                if txn.number != 1 {
                    case.show(origin(number, txn));
                }
            }
        }
        case
    }

    fn write(&mut self, origin: Origin) {
        let log = self.written.entry(place(origin.id, PARTITIONS)).or_default();
        log.push((log.len() as u64, Some(origin)));
    }

    fn show(&mut self, origin: Origin) {
        let log = self.visible.entry(place(origin.id, PARTITIONS)).or_default();
        log.push((log.len() as u64, Some(origin)));
    }

    /// Takes an output away.
    fn hide(&mut self, number: u32) {
        for log in self.visible.values_mut() {
            log.retain(|(_, origin)| origin.is_none_or(|origin| origin.id.number != number));
        }
    }

    fn kinds(&self) -> Vec<Kind> {
        let Case { inputs, visible, written, offsets, fates, drained } = self;
        let found = Found { inputs, visible, written, offsets, fates, drained: *drained };
        check(&found).0.into_keys().collect()
    }
}

#[track_caller]
fn check_finds(change: impl FnOnce(&mut Case), expected: &[Kind]) {
    let mut case = Case::sound();
    change(&mut case);
    assert_eq!(case.kinds(), expected);
}

#[test]
fn a_sound_run_holds() {
    check_finds(|_| {}, &[]);
}

#[test]
fn a_lost_output_is_found() {
    // The whole transaction, so that nothing else is wrong with it.
    check_finds(|case| (3..6).for_each(|number| case.hide(number)), &[Kind::Lost]);
}

#[test]
fn a_doubled_output_is_found() {
    check_finds(
        |case| {
            case.write(origin(4, txn(3)));
            case.show(origin(4, txn(3)));
            case.fates.insert(txn(3), Fate::Committed(1));
        },
        &[Kind::Doubled],
    );
}

#[test]
fn offsets_that_disagree_with_outputs_are_found() {
    let behind = |drained| {
        move |case: &mut Case| {
            case.offsets.insert(0, 3);
            case.drained = drained;
        }
    };
    check_finds(behind(false), &[Kind::Ahead]);
    check_finds(behind(true), &[Kind::Ahead, Kind::Undrained]);
    check_finds(|case| case.offsets.clear(), &[Kind::Ahead, Kind::Undrained]);
}

#[test]
fn a_group_that_has_not_come_to_the_end_is_found_only_when_it_had_the_time() {
    let halted = |drained| {
        move |case: &mut Case| {
            (3..6).for_each(|number| case.hide(number));
            case.offsets.insert(0, 3);
            case.drained = drained;
        }
    };
    check_finds(halted(false), &[]);
    check_finds(halted(true), &[Kind::Undrained]);
}

#[test]
fn another_order_of_one_key_is_found_and_of_two_keys_is_none() {
    let swap = |one: u32, other: u32| {
        move |case: &mut Case| {
            let all: Vec<&mut Origin> =
                case.visible.values_mut().flatten().filter_map(|(_, origin)| origin.as_mut()).collect();
            for found in all {
                let number = match found.id.number {
                    number if number == one => other,
                    number if number == other => one,
                    number => number,
                };
                *found = origin(number, found.txn);
            }
        }
    };
    // 1 and 4 are of one key, and of different transactions.
    check_finds(swap(1, 4), &[Kind::Reordered]);
    // 0 and 2 are of one partition and two keys.
    assert_eq!(place(origin(0, txn(0)).id, PARTITIONS), place(origin(2, txn(0)).id, PARTITIONS));
    check_finds(swap(0, 2), &[]);
}

#[test]
fn outputs_of_nothing_or_in_a_wrong_place_are_found() {
    check_finds(|case| case.visible.entry(0).or_default().push((9, None)), &[Kind::Phantom]);
    check_finds(
        |case| {
            // An input that is another record.
            let log = case.inputs.get_mut(&0).expect("it is there");
            log[5].1 = Content::Foreign(7);
        },
        &[Kind::Phantom],
    );
    check_finds(
        |case| {
            let moved = case.visible.get_mut(&1).and_then(Vec::pop).expect("it is there");
            case.visible.entry(0).or_default().push(moved);
        },
        &[Kind::Phantom],
    );
}

#[test]
fn a_transaction_that_is_half_visible_is_found() {
    check_finds(|case| case.hide(4), &[Kind::Lost, Kind::Half]);
}

#[test]
fn what_workers_were_told_is_held_against_what_is_visible() {
    check_finds(|case| _ = case.fates.insert(txn(0), Fate::Committed(4)), &[Kind::Uncommitted]);
    check_finds(|case| _ = case.fates.insert(txn(3), Fate::Committed(1)), &[Kind::Uncommitted]);
    check_finds(|case| _ = case.fates.insert(txn(2), Fate::Aborted), &[Kind::Unaborted]);
    check_finds(|case| _ = case.fates.insert(txn(2), Fate::Open), &[Kind::Unaborted]);
    check_finds(|case| _ = case.fates.remove(&txn(2)), &[Kind::Unaborted]);
}

#[test]
fn an_output_that_only_readers_of_committed_records_see_is_found() {
    check_finds(
        |case| {
            for log in case.written.values_mut() {
                log.retain(|(_, origin)| origin.is_none_or(|origin| origin.id.number != 0));
            }
        },
        &[Kind::Unwritten],
    );
}
