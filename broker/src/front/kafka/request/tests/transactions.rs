//! Requests about transactions, against the independent encoder.

use super::*;

#[test]
fn describe_producers_is_read() {
    let body = |_| {
        let asked = theirs::describe_producers_request::TopicRequest::default()
            .with_name(topic("t"))
            .with_partition_indexes(vec![0, 7]);
        theirs::DescribeProducersRequest::default().with_topics(vec![asked])
    };
    check(Api::DescribeProducers, body, |_, body| {
        let Body::DescribeProducers(request) = body else { panic!("{body:?}") };
        let [topic] = &request.topics[..] else { panic!("{request:?}") };
        assert_eq!((topic.name.as_str(), &topic.partitions[..]), ("t", &[0, 7][..]));
    });
}

fn added(name: &'static str, partitions: Vec<i32>) -> theirs::add_partitions_to_txn_request::AddPartitionsToTxnTopic {
    theirs::add_partitions_to_txn_request::AddPartitionsToTxnTopic::default()
        .with_name(topic(name))
        .with_partitions(partitions)
}

#[test]
fn add_partitions_to_txn_is_read() {
    let body = |version: i16| {
        let request = theirs::AddPartitionsToTxnRequest::default();
        if version < 4 {
            return request
                .with_v3_and_below_transactional_id(text("x").into())
                .with_v3_and_below_producer_id(5.into())
                .with_v3_and_below_producer_epoch(6)
                .with_v3_and_below_topics(vec![added("t", vec![1, 2])]);
        }
        let transaction = theirs::add_partitions_to_txn_request::AddPartitionsToTxnTransaction::default()
            .with_transactional_id(text("x").into())
            .with_producer_id(5.into())
            .with_producer_epoch(6)
            .with_verify_only(true)
            .with_topics(vec![added("t", vec![1, 2])]);
        request.with_transactions(vec![transaction])
    };
    check(Api::AddPartitionsToTxn, body, |version, body| {
        let Body::AddPartitionsToTxn(request) = body else { panic!("{body:?}") };
        let topics = match version < 4 {
            true => {
                assert_eq!((request.producer_id, request.producer_epoch), (5, 6));
                assert_eq!((request.transactional_id.as_str(), request.transactions.len()), ("x", 0));
                request.topics
            }
            false => {
                let [transaction] = &request.transactions[..] else { panic!("{request:?}") };
                assert_eq!((transaction.producer_id, transaction.producer_epoch), (5, 6));
                assert_eq!((transaction.transactional_id.as_str(), transaction.verify_only), ("x", true));
                transaction.topics.clone()
            }
        };
        let [topic] = &topics[..] else { panic!("{topics:?}") };
        assert_eq!((topic.name.as_str(), &topic.partitions[..]), ("t", &[1, 2][..]));
    });
}

#[test]
fn add_offsets_to_txn_is_read() {
    let body = |_| {
        theirs::AddOffsetsToTxnRequest::default()
            .with_transactional_id(text("x").into())
            .with_producer_id(5.into())
            .with_producer_epoch(6)
            .with_group_id(text("g").into())
    };
    check(Api::AddOffsetsToTxn, body, |_, body| {
        let Body::AddOffsetsToTxn(request) = body else { panic!("{body:?}") };
        assert_eq!((request.transactional_id.as_str(), request.group_id.as_str()), ("x", "g"));
        assert_eq!((request.producer_id, request.producer_epoch), (5, 6));
    });
}

#[test]
fn end_txn_is_read() {
    let body = |_| {
        theirs::EndTxnRequest::default()
            .with_transactional_id(text("x").into())
            .with_producer_id(5.into())
            .with_producer_epoch(6)
            .with_committed(true)
    };
    check(Api::EndTxn, body, |_, body| {
        let Body::EndTxn(request) = body else { panic!("{body:?}") };
        assert_eq!((request.transactional_id.as_str(), request.committed), ("x", true));
        assert_eq!((request.producer_id, request.producer_epoch), (5, 6));
    });
}

#[test]
fn write_txn_markers_is_read() {
    let body = |_| {
        let topic = theirs::write_txn_markers_request::WritableTxnMarkerTopic::default()
            .with_name(topic("t"))
            .with_partition_indexes(vec![3]);
        let marker = theirs::write_txn_markers_request::WritableTxnMarker::default()
            .with_producer_id(5.into())
            .with_producer_epoch(6)
            .with_transaction_result(true)
            .with_coordinator_epoch(-1)
            .with_topics(vec![topic]);
        theirs::WriteTxnMarkersRequest::default().with_markers(vec![marker])
    };
    check(Api::WriteTxnMarkers, body, |_, body| {
        let Body::WriteTxnMarkers(request) = body else { panic!("{body:?}") };
        let [marker] = &request.markers[..] else { panic!("{request:?}") };
        assert_eq!((marker.producer_id, marker.producer_epoch, marker.coordinator_epoch), (5, 6, -1));
        assert!(marker.committed);
        assert_eq!((marker.topics[0].name.as_str(), &marker.topics[0].partitions[..]), ("t", &[3][..]));
    });
}

#[test]
fn txn_offset_commit_is_read() {
    use theirs::txn_offset_commit_request::{TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic};
    let body = |version: i16| {
        let mut partition = TxnOffsetCommitRequestPartition::default()
            .with_partition_index(1)
            .with_committed_offset(77)
            .with_committed_metadata(Some(text("m")));
        if version >= 2 {
            partition = partition.with_committed_leader_epoch(8);
        }
        let topic = TxnOffsetCommitRequestTopic::default().with_name(topic("t")).with_partitions(vec![partition]);
        let request = theirs::TxnOffsetCommitRequest::default()
            .with_transactional_id(text("x").into())
            .with_group_id(text("g").into())
            .with_producer_id(5.into())
            .with_producer_epoch(6)
            .with_topics(vec![topic]);
        if version < 3 {
            return request;
        }
        request.with_generation_id(9).with_member_id(text("member")).with_group_instance_id(Some(text("instance")))
    };
    check(Api::TxnOffsetCommit, body, |version, body| {
        let Body::TxnOffsetCommit(request) = body else { panic!("{body:?}") };
        assert_eq!((request.transactional_id.as_str(), request.group_id.as_str()), ("x", "g"));
        assert_eq!((request.producer_id, request.producer_epoch), (5, 6));
        let member = (request.generation_id, request.member_id.as_str(), request.group_instance_id.as_deref());
        assert_eq!(member, if version < 3 { (-1, "", None) } else { (9, "member", Some("instance")) });
        let partition = &request.topics[0].partitions[0];
        assert_eq!((partition.index, partition.committed_offset), (1, 77));
        assert_eq!(partition.committed_leader_epoch, if version < 2 { -1 } else { 8 });
        assert_eq!((request.topics[0].name.as_str(), partition.committed_metadata.as_deref()), ("t", Some("m")));
    });
}

#[test]
fn describe_transactions_is_read() {
    let body = |_| {
        theirs::DescribeTransactionsRequest::default().with_transactional_ids(vec![text("x").into(), text("y").into()])
    };
    check(Api::DescribeTransactions, body, |_, body| {
        let Body::DescribeTransactions(request) = body else { panic!("{body:?}") };
        assert_eq!(request.transactional_ids, ["x", "y"]);
    });
}

#[test]
fn list_transactions_is_read() {
    let body = |version: i16| {
        let mut request = theirs::ListTransactionsRequest::default()
            .with_state_filters(vec![text("Ongoing")])
            .with_producer_id_filters(vec![5.into()]);
        if version >= 1 {
            request = request.with_duration_filter(60_000);
        }
        if version >= 2 {
            request = request.with_transactional_id_pattern(Some(text("x.*")));
        }
        request
    };
    check(Api::ListTransactions, body, |version, body| {
        let Body::ListTransactions(request) = body else { panic!("{body:?}") };
        assert_eq!(
            (&request.state_filters[..], &request.producer_id_filters[..]),
            (&["Ongoing".to_owned()][..], &[5][..])
        );
        assert_eq!(request.duration_filter, if version < 1 { -1 } else { 60_000 });
        assert_eq!(request.transactional_id_pattern.as_deref(), (version >= 2).then_some("x.*"));
    });
}
