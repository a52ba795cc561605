//! Fetch sessions (KIP-227) of a running broker.

use super::wire::{Connection, Fetched, Served, bases, batch, fetch, frame, name};
use kafka_protocol::messages as kafka;
use kafka_protocol::protocol::{Decodable, HeaderVersion};

const FETCH_SESSION_ID_NOT_FOUND: i16 = 70;
const INVALID_FETCH_SESSION_EPOCH: i16 = 71;
const FETCH_SESSION_TOPIC_ID_ERROR: i16 = 106;

/// A request of a session, with what changes.
fn of_session(id: i32, epoch: i32, changed: &[(i32, i64)]) -> kafka::FetchRequest {
    let request = fetch("t", changed, 1 << 20, 1 << 20).with_session_id(id).with_session_epoch(epoch);
    if changed.is_empty() { request.with_topics(Vec::new()) } else { request }
}

/// The partitions of an answer, in order.
fn told(answer: &kafka::FetchResponse) -> Vec<(i32, Vec<u64>)> {
    assert_eq!(answer.error_code, 0);
    let partitions = answer.responses.iter().flat_map(|topic| &topic.partitions);
    partitions.map(|data: &Fetched| (data.partition_index, bases(data))).collect()
}

async fn served() -> (Served, Connection) {
    let served = Served::start().await;
    let mut connection = served.connect().await;
    connection.create("t", 4, &[]).await;
    (served, connection)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_of_a_session_name_what_changed_and_so_do_their_answers() {
    let (served, mut connection) = served().await;
    let mut producer = served.connect().await;
    for version in 7..=12 {
        let mut reader = served.connect().await;
        let opened = reader.call(version, &of_session(0, 0, &[(0, 0), (1, 0), (2, 0), (3, 0)])).await;
        let id = opened.session_id;
        assert_ne!(id, 0);
        assert_eq!(told(&opened).len(), 4, "the first answer is whole");
        let ends: Vec<i64> = opened.responses[0].partitions.iter().map(|data| data.high_watermark).collect();
        let at_ends: Vec<(i32, i64)> = (0..).zip(ends.iter().copied()).collect();
        assert!(told(&reader.call(version, &of_session(id, 1, &at_ends)).await).is_empty(), "nothing is news");
        // Waits for whatever comes first, of all of them.
        let waiting = of_session(id, 2, &[]).with_max_wait_ms(60_000).with_min_bytes(1);
        reader.send(&frame(version, 77, &waiting)).await;
        assert_eq!(producer.produce("t", 2, batch(&[1], b"v")).await.error_code, 0);
        let end = u64::try_from(ends[2]).expect("an offset");
        let woken: kafka::FetchResponse = answer(&mut reader, version).await;
        assert_eq!(told(&woken), [(2, vec![end])]);
        let again = reader.call(version, &of_session(id, 3, &[])).await;
        assert_eq!(told(&again), [(2, vec![end])], "until the client says that it is further");
        assert!(told(&reader.call(version, &of_session(id, 4, &[(2, ends[2] + 1)])).await).is_empty());
        assert!(told(&reader.call(version, &of_session(id, 5, &[])).await).is_empty());
    }
    // Outside of any session, as before.
    assert_eq!(connection.call(12, &fetch("t", &[(0, 0)], 1 << 20, 1 << 20)).await.session_id, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_go_by_topic_ids_from_version_13_on() {
    let (_served, mut connection) = served().await;
    assert_eq!(connection.produce("t", 1, batch(&[1], b"v")).await.error_code, 0);
    let asked = kafka::metadata_request::MetadataRequestTopic::default().with_name(Some(name("t")));
    let described = connection.call(12, &kafka::MetadataRequest::default().with_topics(Some(vec![asked]))).await;
    let topic_id = described.topics[0].topic_id;
    let by_id = |mut request: kafka::FetchRequest| {
        for topic in &mut request.topics {
            (topic.topic, topic.topic_id) = (name(""), topic_id);
        }
        request
    };
    for version in 13..=17 {
        let opened = connection.call(version, &by_id(of_session(0, 0, &[(0, 0), (1, 0)]))).await;
        assert_eq!((told(&opened), opened.responses[0].topic_id), (vec![(0, vec![]), (1, vec![0])], topic_id));
        let id = opened.session_id;
        let forgotten =
            kafka::fetch_request::ForgottenTopic::default().with_topic_id(topic_id).with_partitions(vec![1]);
        let request = of_session(id, 1, &[]).with_forgotten_topics_data(vec![forgotten]);
        assert!(told(&connection.call(version, &request).await).is_empty(), "what it forgot is read no more");
        assert_eq!(connection.call(12, &of_session(id, 2, &[])).await.error_code, FETCH_SESSION_TOPIC_ID_ERROR);
        let more = connection.call(version, &by_id(of_session(id, 2, &[(1, 0)]))).await;
        assert_eq!(told(&more), [(1, vec![0])]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_ends_with_its_connection_and_a_client_that_lost_it_begins_another() {
    let (served, mut connection) = served().await;
    let id = connection.call(12, &of_session(0, 0, &[(0, 0)])).await.session_id;
    assert_eq!(connection.call(12, &of_session(id, 3, &[])).await.error_code, INVALID_FETCH_SESSION_EPOCH);
    let mut next = served.connect().await;
    assert_eq!(next.call(12, &of_session(id, 1, &[])).await.error_code, FETCH_SESSION_ID_NOT_FOUND);
    let begun = next.call(12, &of_session(id, 0, &[(0, 0), (1, 0)])).await;
    assert!(begun.session_id != 0 && told(&begun).len() == 2);
    let ended = connection.call(12, &of_session(id, -1, &[(0, 0)])).await;
    assert_eq!((ended.session_id, told(&ended).len()), (0, 1), "ended by its client, and answered as any request");
    assert_eq!(connection.call(12, &of_session(id, 1, &[])).await.error_code, FETCH_SESSION_ID_NOT_FOUND);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pipelined_requests_of_a_session_are_carried_out_one_by_one() {
    let (_served, mut connection) = served().await;
    assert_eq!(connection.produce("t", 0, batch(&[1], b"v")).await.error_code, 0);
    let requests = [of_session(0, 0, &[(0, 0), (1, 0)]), of_session(1, 1, &[(0, 1)]), of_session(1, 2, &[(0, 0)])];
    let frames: Vec<_> = requests.iter().map(|request| frame(12, 77, request)).collect();
    connection.send(&frames.concat()).await;
    let mut answers = Vec::new();
    for _ in 0..3 {
        answers.push(told(&answer(&mut connection, 12).await));
    }
    assert_eq!(answers, [vec![(0, vec![0]), (1, vec![])], vec![], vec![(0, vec![0])]]);
}

/// A large read of one partition leaves room for the others in the next answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_partition_does_not_keep_the_others_of_its_session_from_being_read() {
    let (_served, mut connection) = served().await;
    for partition in 0..4 {
        for _ in 0..4 {
            assert_eq!(connection.produce("t", partition, batch(&[1], &[7; 1000])).await.error_code, 0);
        }
    }
    let all = [(0, 0), (1, 0), (2, 0), (3, 0)];
    let opened = connection.call(12, &of_session(0, 0, &all).with_max_bytes(1)).await;
    let mut served = vec![told(&opened).into_iter().find(|(_, bases)| !bases.is_empty()).expect("one batch fits").0];
    for epoch in 1..4 {
        let next = connection.call(12, &of_session(opened.session_id, epoch, &[]).with_max_bytes(1)).await;
        served.extend(told(&next).into_iter().filter(|(_, bases)| !bases.is_empty()).map(|(partition, _)| partition));
    }
    assert_eq!(served, [0, 1, 2, 3]);
}

async fn answer(connection: &mut Connection, version: i16) -> kafka::FetchResponse {
    let mut bytes = connection.receive().await.expect("the broker answers");
    let header = kafka::FetchResponse::header_version(version);
    let header = kafka::ResponseHeader::decode(&mut bytes, header).expect("a header");
    assert_eq!(header.correlation_id, 77);
    kafka::FetchResponse::decode(&mut bytes, version).expect("an answer of this version")
}
