//! A member of a group whose coordinator is scripted.

use crate::consume::{fill, partition};
use crate::scripted::Scripted;
use futures::StreamExt;
use millpond_sdk::{Client, ConsumerRecord, GroupConfig, GroupConsumer, Subscription};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::timeout;

/// How long anything may take before the test is called stuck.
const PATIENCE: Duration = Duration::from_secs(30);

/// A member that reads what it may. It ends when dropped.
struct Member {
    records: mpsc::UnboundedReceiver<ConsumerRecord>,
    task: AbortHandle,
}

impl Member {
    async fn join(broker: &Scripted) -> Member {
        let client = Client::connect(&broker.address).await.expect("connects");
        let mut consumer = GroupConsumer::new(&client, GroupConfig::new("g"), Subscription::topics(["t"]))
            .expect("the settings are good");
        let (read, records) = mpsc::unbounded_channel();
        let reading = async move {
            while let Some(record) = consumer.next().await {
                let _ = read.send(record.expect("it can be read"));
            }
        };
        Member { records, task: tokio::spawn(reading).abort_handle() }
    }

    /// The offset of the first record that it reads of a partition.
    async fn first_of(&mut self, index: u32) -> u64 {
        loop {
            let record = self.records.recv().await.expect("it reads on");
            if record.topic_partition() == partition(index) {
                return record.offset.0;
            }
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn set(indexes: &[u32]) -> BTreeSet<u32> {
    indexes.iter().copied().collect()
}

/// Rule O2, and S20: what was found of a partition before another member could have read it is void, although the partition came back.
#[tokio::test]
async fn a_partition_that_was_told_away_and_back_begins_where_the_group_is_by_then() {
    let broker = Scripted::start(2).await;
    fill(&broker, 0, 0, 120);
    fill(&broker, 1, 0, 2);
    broker.coordination.commit(0, 50);
    broker.hold_lookups([1]);
    let test = async {
        let told = broker.coordination.tell(5, &[0, 1]);
        let (mut member, ()) = tokio::join!(Member::join(&broker), told);
        // It knows of 50, and waits to hear where the other partition begins.
        broker.lookup_waits().await;
        broker.coordination.tell(6, &[1]).await;
        broker.coordination.hears(|beat| beat.epoch == 6 && beat.owned == Some(set(&[]))).await;
        // So another member had it, and has left.
        broker.coordination.commit(0, 100);
        broker.coordination.tell(7, &[0, 1]).await;
        broker.hold_lookups([]);
        assert_eq!(member.first_of(0).await, 100);
        assert_eq!(broker.coordination.is_asked(2).await, [set(&[0, 1]), set(&[0])]);
    };
    timeout(PATIENCE, test).await.expect("it gets there");
}

/// A partition without a leader holds up nobody who waits for another one, and whether it was told away with that or not.
#[tokio::test]
async fn a_partition_is_given_up_while_it_is_not_known_where_another_one_begins() {
    for left in [&[1][..], &[]] {
        let broker = Scripted::start(2).await;
        fill(&broker, 0, 0, 2);
        let test = async {
            let (mut member, ()) = tokio::join!(Member::join(&broker), broker.coordination.tell(5, &[0]));
            assert_eq!(member.first_of(0).await, 0);
            broker.hold_lookups([1]);
            broker.coordination.tell(6, &[0, 1]).await;
            broker.lookup_waits().await;
            broker.coordination.tell(7, left).await;
            broker.coordination.hears(|beat| beat.epoch == 7 && beat.owned == Some(set(&[]))).await;
        };
        timeout(PATIENCE, test).await.unwrap_or_else(|_| panic!("it is given up, and {left:?} left"));
    }
}

/// Nor does it hold up the member that it was told away from.
#[tokio::test]
async fn a_partition_is_read_although_one_that_was_told_away_has_no_leader() {
    let broker = Scripted::start(2).await;
    fill(&broker, 0, 0, 2);
    broker.hold_lookups([1]);
    let test = async {
        let (mut member, ()) = tokio::join!(Member::join(&broker), broker.coordination.tell(5, &[1]));
        broker.lookup_waits().await;
        broker.coordination.tell(6, &[0]).await;
        assert_eq!(member.first_of(0).await, 0);
    };
    timeout(PATIENCE, test).await.expect("it reads");
}
