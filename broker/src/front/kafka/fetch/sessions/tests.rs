//! A session as its client sees it, without a broker.

use super::super::{FetchedTopic, NO_TOPIC_ID};
use super::*;

const ROOM: usize = 1 << 20;

/// A request of one topic: partitions with the offsets to read from.
fn request(session_id: i32, session_epoch: i32, partitions: &[(i32, i64)]) -> FetchRequest {
    let partition = |&(index, fetch_offset): &(i32, i64)| FetchPartition { index, fetch_offset, ..Default::default() };
    let partitions: Vec<_> = partitions.iter().map(partition).collect();
    let topic = FetchTopic { name: "t".to_owned(), id: NO_TOPIC_ID, partitions };
    let topics = if topic.partitions.is_empty() { Vec::new() } else { vec![topic] };
    FetchRequest { session_id, session_epoch, topics, ..Default::default() }
}

fn forgetting(request: FetchRequest, partitions: &[i32]) -> FetchRequest {
    let forgotten = ForgottenTopic { name: "t".to_owned(), id: NO_TOPIC_ID, partitions: partitions.to_vec() };
    FetchRequest { forgotten_topics: vec![forgotten], ..request }
}

/// What a partition answers: a high watermark, and whether there are records.
type Answers<'a> = &'a dyn Fn(i32) -> PartitionData;

fn quiet(index: i32) -> PartitionData {
    PartitionData { index, high_watermark: 10, last_stable_offset: 10, log_start_offset: 0, ..Default::default() }
}

fn with_records(data: PartitionData) -> PartitionData {
    use millpond_log::batch::{BatchBuilder, NewRecord};
    let mut batch = BatchBuilder::new(millpond_log::codec::Codec::None);
    let timestamp = millpond_log::TimestampMs(1);
    batch.push(NewRecord { timestamp, key: None, value: Some(b"v"), headers: &[] });
    PartitionData { records: super::super::Batches(vec![batch.build()]), ..data }
}

/// The partitions that were read with their offsets, in order; the session; and the partitions that the answer names.
type Answered = (Vec<(i32, i64)>, i32, Vec<i32>);

/// Carries out a request.
fn call(sessions: &Sessions, room: &Pool, mut request: FetchRequest, answers: Answers<'_>) -> Result<Answered, i16> {
    let mut turn = sessions.begin(&mut request, false, room)?;
    let read = turn.topics();
    let topics = read.iter().map(|topic| FetchedTopic {
        name: topic.name.clone(),
        partitions: topic.partitions.iter().map(|partition| answers(partition.index)).collect(),
        ..Default::default()
    });
    let mut answer = FetchResponse { topics: topics.collect(), ..Default::default() };
    sessions.end(turn, &mut answer);
    let asked = read.iter().flat_map(|topic| &topic.partitions);
    let told = answer.topics.iter().flat_map(|topic| &topic.partitions);
    Ok((
        asked.map(|partition| (partition.index, partition.fetch_offset)).collect(),
        answer.session_id,
        told.map(|data| data.index).collect(),
    ))
}

#[test]
fn a_session_reads_all_that_was_asked_for_and_answers_what_changed() {
    let (sessions, room) = (Sessions::default(), Pool::new(ROOM));
    let first = call(&sessions, &room, request(0, 0, &[(0, 5), (1, 6), (2, 7)]), &quiet);
    assert_eq!(first, Ok((vec![(0, 5), (1, 6), (2, 7)], 1, vec![0, 1, 2])), "the first answer is whole");
    assert_eq!(room.held(), 3 * PARTITION_BYTES);
    let nothing = call(&sessions, &room, request(1, 1, &[]), &quiet);
    assert_eq!(nothing, Ok((vec![(0, 5), (1, 6), (2, 7)], 1, vec![])), "nothing is news");
    let moved = |index| PartitionData { high_watermark: if index == 1 { 11 } else { 10 }, ..quiet(index) };
    assert_eq!(call(&sessions, &room, request(1, 2, &[]), &moved).map(|(.., told)| told), Ok(vec![1]));
    assert_eq!(call(&sessions, &room, request(1, 3, &[]), &moved).map(|(.., told)| told), Ok(vec![]));
    let stable = |index| PartitionData { last_stable_offset: if index == 2 { 9 } else { 10 }, ..moved(index) };
    assert_eq!(call(&sessions, &room, request(1, 4, &[]), &stable).map(|(.., told)| told), Ok(vec![2]));
    let cut = |index| PartitionData { log_start_offset: if index == 0 { 1 } else { 0 }, ..stable(index) };
    assert_eq!(call(&sessions, &room, request(1, 5, &[]), &cut).map(|(.., told)| told), Ok(vec![0]));
}

#[test]
fn what_a_client_has_to_act_on_is_told_each_time() {
    let (sessions, room) = (Sessions::default(), Pool::new(ROOM));
    call(&sessions, &room, request(0, 0, &[(0, 0), (1, 0), (2, 0)]), &quiet).expect("a session");
    let acting = |index| match index {
        0 => PartitionData { index, error_code: 6, ..Default::default() },
        1 => PartitionData { preferred_read_replica: 3, ..quiet(index) },
        _ => PartitionData { diverging_epoch: Some(Default::default()), ..quiet(index) },
    };
    for epoch in [1, 2] {
        assert_eq!(call(&sessions, &room, request(1, epoch, &[]), &acting).map(|(.., told)| told), Ok(vec![0, 1, 2]));
    }
    let after = call(&sessions, &room, request(1, 3, &[]), &quiet).map(|(.., told)| told);
    assert_eq!(after, Ok(vec![0]), "that it is well again is news");
}

#[test]
fn partitions_are_added_moved_and_forgotten() {
    let (sessions, room) = (Sessions::default(), Pool::new(ROOM));
    call(&sessions, &room, request(0, 0, &[(0, 0), (1, 0)]), &quiet).expect("a session");
    let changed = call(&sessions, &room, forgetting(request(1, 1, &[(1, 9), (2, 4)]), &[0, 7]), &quiet);
    assert_eq!(changed, Ok((vec![(1, 9), (2, 4)], 1, vec![2])), "the new one is told, the other has nothing new");
    assert_eq!(room.held(), 2 * PARTITION_BYTES);
    let emptied = call(&sessions, &room, forgetting(request(1, 2, &[]), &[1, 2]), &quiet);
    assert_eq!(emptied, Ok((vec![], 0, vec![])), "nothing is left to remember");
    assert_eq!(room.held(), 0);
    assert_eq!(call(&sessions, &room, request(1, 3, &[]), &quiet), Err(FETCH_SESSION_ID_NOT_FOUND));
}

#[test]
fn partitions_whose_records_were_returned_have_their_turn_last() {
    let (sessions, room) = (Sessions::default(), Pool::new(ROOM));
    let busy = |index| if index == 0 { with_records(quiet(index)) } else { quiet(index) };
    call(&sessions, &room, request(0, 0, &[(0, 0), (1, 0), (2, 0)]), &busy).expect("a session");
    let again = call(&sessions, &room, request(1, 1, &[(0, 1)]), &busy);
    assert_eq!(again, Ok((vec![(1, 0), (2, 0), (0, 1)], 1, vec![0])));
}

#[test]
fn a_client_that_is_elsewhere_is_told_and_begins_anew() {
    let (sessions, room) = (Sessions::default(), Pool::new(ROOM));
    assert_eq!(call(&sessions, &room, request(7, 1, &[]), &quiet), Err(FETCH_SESSION_ID_NOT_FOUND));
    call(&sessions, &room, request(0, 0, &[(0, 0)]), &quiet).expect("a session");
    assert_eq!(call(&sessions, &room, request(1, 2, &[]), &quiet), Err(INVALID_FETCH_SESSION_EPOCH));
    assert_eq!(sessions.begin(&mut request(1, 1, &[]), true, &room).err(), Some(FETCH_SESSION_TOPIC_ID_ERROR));
    assert!(call(&sessions, &room, request(1, 1, &[]), &quiet).is_ok(), "what is refused changes nothing");
    let second = call(&sessions, &room, request(1, 0, &[(3, 0)]), &quiet);
    assert_eq!(second, Ok((vec![(3, 0)], 2, vec![3])), "another takes its place");
    assert_eq!(room.held(), PARTITION_BYTES, "and its room");
    assert_eq!(call(&sessions, &room, request(1, 2, &[]), &quiet), Err(FETCH_SESSION_ID_NOT_FOUND));
    let last = call(&sessions, &room, request(2, -1, &[(3, 0)]), &quiet);
    assert_eq!((last, room.held()), (Ok((vec![(3, 0)], 0, vec![3])), 0), "ended by its client");
    let outside = call(&sessions, &room, request(0, -1, &[(3, 0), (3, 0)]), &quiet);
    assert_eq!(outside, Ok((vec![(3, 0), (3, 0)], 0, vec![3, 3])), "a request outside of any session");
}

#[test]
fn a_session_without_room_is_declined_and_one_that_outgrows_it_ends() {
    let (sessions, room) = (Sessions::default(), Pool::new(2 * PARTITION_BYTES));
    let declined = call(&sessions, &room, request(0, 0, &[(0, 0), (1, 0), (2, 0)]), &quiet);
    assert_eq!((declined, room.held()), (Ok((vec![(0, 0), (1, 0), (2, 0)], 0, vec![0, 1, 2])), 0));
    let twice = call(&sessions, &room, request(0, 0, &[(0, 0), (0, 0)]), &quiet);
    assert_eq!(twice.map(|(_, id, told)| (id, told)), Ok((0, vec![0, 0])), "nor one that names a partition twice");
    let (_, id, _) = call(&sessions, &room, request(0, 0, &[(0, 0)]), &quiet).expect("an answer");
    let others = room.try_take(PARTITION_BYTES);
    assert!(id != 0 && others.is_some());
    assert_eq!(call(&sessions, &room, request(id, 1, &[(1, 0)]), &quiet), Err(FETCH_SESSION_ID_NOT_FOUND));
    drop(others);
    assert_eq!(room.held(), 0);
}

#[test]
fn epochs_begin_again_with_one() {
    assert_eq!([next(0), next(i32::MAX)], [1, 1]);
}
