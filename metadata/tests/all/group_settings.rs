//! What is set on groups: kept by name, changed only by who knows what was set before.

use crate::store::{ANSWER, Cluster, cluster, committed, register};
use millpond_core::records::GroupSettingsRecord;
use millpond_metadata::kv::Revision;
use millpond_metadata::store::Outcome;

fn record(value: &str) -> GroupSettingsRecord {
    GroupSettingsRecord { settings: [("consumer.session.timeout.ms".to_owned(), value.to_owned())].into() }
}

#[tokio::test]
async fn settings_of_a_group_are_kept_changed_by_who_knows_them_and_gone_with_the_last() {
    let Cluster { store, lossy, .. } = cluster().await;
    let session = register(&store, 1).await;
    assert_eq!(store.group_settings("g/1").await, Ok(None));
    let alter = async |seen, record: &GroupSettingsRecord| {
        store.alter_group_settings(&session, "g/1", seen, record).await.expect("up")
    };
    let first = committed(&alter(Revision::ABSENT, &record("1")).await);
    assert_eq!(alter(Revision::ABSENT, &record("2")).await, Outcome::Conflict, "it was set meanwhile");
    let seen = store.group_settings("g/1").await.expect("up").expect("it is set");
    assert_eq!((seen.revision, seen.value), (first, record("1")));
    assert_eq!(store.group_settings("g").await, Ok(None), "another group");

    lossy.lose(ANSWER);
    assert_eq!(alter(first, &record("2")).await, Outcome::Unknown);
    let second = committed(&alter(first, &record("2")).await);
    assert_eq!(store.load().await.expect("up").group_settings["g/1"].revision, second);
    let nothing = GroupSettingsRecord { settings: [].into() };
    assert_eq!(alter(first, &nothing).await, Outcome::Conflict);
    committed(&alter(second, &nothing).await);
    assert_eq!(store.group_settings("g/1").await, Ok(None));
    assert!(store.load().await.expect("up").group_settings.is_empty());

    store.leave(&session).await.expect("up");
    assert_eq!(alter(Revision::ABSENT, &record("3")).await, Outcome::Fenced);
}
