//! Any mix of reads, hints, faults, inserts, restarts and forgetting gives the object's bytes, or an error, and stays within bounds.

use crate::store::{Act, PAGE, Script, far, open, options};
use millpond_cache::{CacheOptions, DiskOptions, Hint};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Read { object: usize, start: u64, len: u64, hint: Hint },
    Insert(usize),
    Forget { object: usize, start: u64, len: u64 },
    Fault(Act),
    Restart,
}

const OBJECTS: usize = 4;
const SIZE_MAX: u64 = 60 * PAGE;

fn step() -> impl Strategy<Value = Step> {
    let hint = prop_oneof![Just(Hint::Normal), Just(Hint::Scan)];
    let place = (0..OBJECTS, 0..SIZE_MAX, 1..20 * PAGE);
    let act = prop_oneof![
        Just(Act::Busy),
        Just(Act::Hang),
        (0..4096_usize).prop_map(Act::Cut),
        (0..4096_usize).prop_map(Act::Break),
        (0..4096_usize).prop_map(Act::Stall),
        (1..9000_usize).prop_map(Act::Pad),
    ];
    prop_oneof![
        20 => (place.clone(), hint).prop_map(|((object, start, len), hint)| Step::Read { object, start, len, hint }),
        1 => (0..OBJECTS).prop_map(Step::Insert),
        2 => place.prop_map(|(object, start, len)| Step::Forget { object, start, len }),
        4 => act.prop_map(Step::Fault),
        1 => Just(Step::Restart),
    ]
}

async fn check(steps: Vec<Step>) {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Script::in_memory();
    let mut objects = Vec::new();
    for index in 0..OBJECTS {
        // The last page of each is of another length.
        objects.push(store.object(&format!("{index}"), (SIZE_MAX as usize / (index + 1)) - 777 * index).await);
    }
    let options = || CacheOptions { disk: Some(DiskOptions { dir: dir.path().into(), bytes: 1 << 20 }), ..options() };
    let mut cache = open(options(), &store).await;
    for step in steps {
        match step {
            Step::Read { object, start, len, hint } => {
                let (object, contents) = &objects[object];
                let range = start.min(object.size)..start.saturating_add(len).min(object.size);
                let bytes = cache.read_whole(object, range.clone(), hint, far()).await.expect("all faults pass");
                assert!(bytes == contents[range.start as usize..range.end as usize], "{range:?} of {object:?}");
                assert!(
                    cache.counters().memory_bytes <= options().memory_bytes * 2,
                    "pages in use are all that may exceed it"
                );
            }
            Step::Insert(object) => cache.insert(&objects[object].0, &objects[object].1).await,
            Step::Forget { object, start, len } => {
                let object = &objects[object].0;
                cache.forget(object, start.min(object.size)..start.saturating_add(len).min(object.size));
            }
            Step::Fault(act) => store.next([act]),
            Step::Restart => {
                cache.close().await;
                cache = open(options(), &store).await;
                assert_eq!(cache.counters().disk_skips, 0, "nothing was skipped so far");
            }
        }
    }
    cache.close().await;
    assert_eq!(cache.counters().pages_in_flight, 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn whatever_happens_reads_give_the_objects_bytes(steps in proptest::collection::vec(step(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime");
        runtime.block_on(check(steps));
    }
}
