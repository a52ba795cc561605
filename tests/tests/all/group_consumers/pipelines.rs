//! Members that read, process and write in transactions, with the offsets of what they read: each output once.

use super::*;
use millpond_sdk::{
    Consumer, ConsumerConfig, ErrorCode, IsolationLevel, StartAt, TransactionalConfig, TransactionalProducer,
};
use millpond_tests::gate::Hold;

async fn producer(client: &Client, id: &str) -> TransactionalProducer {
    TransactionalProducer::new(client, TransactionalConfig::new(id)).await.expect("it is taken")
}

/// Begins a transaction and writes an output for each record, and says what offsets follow them.
async fn process(
    producer: &mut TransactionalProducer,
    taken: &BTreeMap<TopicPartition, Vec<u32>>,
) -> Vec<(TopicPartition, Offset)> {
    producer.begin().expect("none is open");
    for value in taken.values().flatten() {
        let output = ProducerRecord::new("out").partition(0).value(value.to_string());
        producer.send(output).await.expect("it is taken").await.expect("it is written");
    }
    let following = |(at, values): (&TopicPartition, &Vec<u32>)| (at.clone(), Offset(values.len() as u64));
    taken.iter().map(following).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_lost_its_partitions_commits_no_offsets_in_a_transaction_and_each_output_is_there_once() {
    let pond = Pond::start().await;
    create(&pond.client, "t", 2).await;
    create(&pond.client, "out", 1).await;
    for index in 0..2 {
        produce(&pond.client, "t", index, index * 10..index * 10 + 10).await;
    }
    let (heard, _gate) = Heard::new();
    let stuck = GroupConfig { poll_interval_max: Duration::from_secs(1), ..GroupConfig::new("g") };
    let mut first = join(&pond.client, stuck, "t", &heard);
    let mut writes_first = producer(&pond.client, "first").await;
    let taken = take(&mut first, 20).await;
    // At once: a second later it is stuck.
    let of = first.offsets_of(taken.keys()).expect("they are its own");
    let offsets = process(&mut writes_first, &taken).await;
    let elsewhere = first.offsets_of(&[partition("t", 7)]).expect_err("nobody gave it that");
    assert_eq!(elsewhere.code, Some(ErrorCode::StaleMemberEpoch));

    // It asks for nothing more, and another member reads, processes and commits all of it.
    let (late, _gate) = Heard::new();
    let mut second = join(&pond.client, GroupConfig::new("g"), "t", &late);
    let again = take(&mut second, 20).await;
    assert_eq!(again, taken);
    let mut writes_second = producer(&pond.client, "second").await;
    let theirs = process(&mut writes_second, &again).await;
    let theirs_of = second.offsets_of(again.keys()).expect("they are its own");
    writes_second.send_offsets(&theirs_of, &theirs).await.expect("it holds them");
    writes_second.commit().await.expect("it is committed");

    // The first finds out, by itself and by the coordinator; what it wrote is never seen.
    let lost = first.offsets_of(taken.keys()).expect_err("others have them");
    assert_eq!(lost.code, Some(ErrorCode::StaleMemberEpoch));
    let refused = writes_first.send_offsets(&of, &offsets).await.expect_err("others have them");
    assert!(matches!(refused.code, Some(ErrorCode::UnknownMemberId | ErrorCode::StaleMemberEpoch)), "{refused:?}");
    writes_first.commit().await.expect_err("it can only be aborted");
    writes_first.abort().await.expect("it is aborted");
    assert_eq!(committed(&second, "t", 2).await, [Some(10), Some(10)]);
    let config = ConsumerConfig { isolation: IsolationLevel::ReadCommitted, ..ConsumerConfig::default() };
    let mut reader = Consumer::new(&pond.client, config);
    reader.assign([(partition("out", 0), StartAt::Earliest)]).await.expect("it exists");
    let mut seen = Vec::new();
    // Both transactions' records, and their markers.
    while reader.position(&partition("out", 0)).is_some_and(|position| position < Offset(42)) {
        let polled = timeout(PATIENCE, reader.poll(Duration::from_millis(100))).await.expect("it answers");
        seen.extend(polled.expect("it can be read").iter().map(|record| value(&record.value)));
    }
    assert_eq!(seen, (0..20).collect::<Vec<u32>>());
    pond.stop().await;
}

/// A topic that is made anew has another id, which a producer that was there before finds out by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn offsets_of_a_topic_that_was_made_anew_are_part_of_the_next_transaction() {
    let pond = Pond::start().await;
    let admin = Admin::new(&pond.client);
    let mut writes = producer(&pond.client, "writes").await;
    let of = millpond_sdk::OffsetsOf { group: "g".to_owned(), member: None };
    let mut send = async |offset: u64| -> Result<(), millpond_sdk::Error> {
        writes.begin().expect("none is open");
        let sent = writes.send_offsets(&of, &[(partition("t", 0), Offset(offset))]).await;
        match sent {
            Ok(()) => writes.commit().await.expect("it is committed"),
            Err(_) => writes.abort().await.expect("it is aborted"),
        }
        sent
    };
    create(&pond.client, "t", 1).await;
    produce(&pond.client, "t", 0, 0..10).await;
    send(7).await.expect("it is there");
    admin.delete_topic("t").await.expect("it is there");
    create(&pond.client, "t", 1).await;
    produce(&pond.client, "t", 0, 0..10).await;
    let sent = async {
        while let Err(error) = send(3).await {
            let code = error.code;
            assert!(matches!(code, Some(ErrorCode::UnknownTopicOrPartition | ErrorCode::UnknownTopicId)), "{error:?}");
        }
    };
    timeout(PATIENCE, sent).await.expect("its new id is found");
    let reader = GroupConsumer::new(&pond.client, GroupConfig::new("g"), Subscription::topics(["t"])).expect("good");
    let committed = async { while committed(&reader, "t", 1).await != [Some(3)] {} };
    timeout(PATIENCE, committed).await.expect("it is of the new topic");
    pond.stop().await;
}

/// Rule X3: the broker has the offsets, and whoever sent them does not know.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn offsets_whose_answer_nobody_waited_for_are_no_part_of_the_next_transaction() {
    let (pond, gate) = Pond::gated().await;
    create(&pond.client, "t", 2).await;
    for index in 0..2 {
        produce(&pond.client, "t", index, 0..10).await;
    }
    let mut consumer =
        GroupConsumer::new(&pond.client, GroupConfig::new("g"), Subscription::topics(["t"])).expect("good settings");
    let taken = take(&mut consumer, 20).await;
    let of = consumer.offsets_of(taken.keys()).expect("they are its own");
    let mut writes = producer(&pond.client, "writes").await;
    let at = |index, offset| [(partition("t", index), Offset(offset))];
    for (given_up, kept, expected) in [(0, 1, [None, Some(5)]), (1, 0, [Some(6), Some(5)])] {
        writes.begin().expect("none is open");
        gate.hold(Hold::Answer("CommitTransactionOffsets"));
        let unheard = at(given_up, 10);
        tokio::select! {
            sent = writes.send_offsets(&of, &unheard) => panic!("{sent:?}"),
            () = gate.holds() => {}
        }
        gate.pass();
        let unknown = writes.commit().await.expect_err("it is not known what would be committed");
        assert_eq!(unknown.code, Some(ErrorCode::InvalidTxnState), "{unknown:?}");
        writes.abort().await.expect("it is aborted");
        writes.begin().expect("none is open");
        writes.send_offsets(&of, &at(kept, 5 + u64::from(given_up))).await.expect("it holds them");
        writes.commit().await.expect("it is committed");
        let committed = async { while committed(&consumer, "t", 2).await != expected {} };
        timeout(PATIENCE, committed).await.expect("only what was committed is there");
    }
    // Sent again, they are part of it.
    writes.begin().expect("none is open");
    gate.hold(Hold::Request("CommitTransactionOffsets"));
    let again = at(0, 10);
    tokio::select! {
        sent = writes.send_offsets(&of, &again) => panic!("{sent:?}"),
        () = gate.holds() => {}
    }
    gate.pass();
    writes.send_offsets(&of, &again).await.expect("it holds them");
    writes.commit().await.expect("it is committed");
    let committed = async { while committed(&consumer, "t", 2).await != [Some(10), Some(5)] {} };
    timeout(PATIENCE, committed).await.expect("they are committed");
    consumer.close().await.expect("the coordinator hears of it");
    pond.stop().await;
}
