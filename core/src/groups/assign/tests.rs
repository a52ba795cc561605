//! Assignments are complete, even, and move as little as they can.

use super::*;
use crate::groups::topics::Topic;
use proptest::prelude::*;

#[derive(Clone, Debug)]
struct Reader {
    id: Arc<str>,
    instance: Option<String>,
    rack: Option<String>,
    topics: BTreeSet<TopicId>,
}

fn reader(id: &str, topics: &[u128]) -> Reader {
    Reader { id: id.into(), instance: None, rack: None, topics: topics.iter().map(|&id| TopicId(id)).collect() }
}

fn image(partitions: &[usize]) -> Topics {
    let topic = |(id, &count): (u128, &usize)| {
        let name = format!("t{id}").parse().expect("a topic name");
        let racks = (0..count).map(|index| [format!("r{}", index % 3)].into()).collect();
        (TopicId(id), Topic { name, racks })
    };
    Topics::new(1, (0..).zip(partitions).map(topic).collect())
}

fn run(assignor: Assignor, readers: &[Reader], topics: &Topics, before: &Target) -> Target {
    let members: Vec<Assignee<'_>> = readers
        .iter()
        .map(|reader| Assignee {
            id: &reader.id,
            instance: reader.instance.as_deref(),
            rack: reader.rack.as_deref(),
            topics: &reader.topics,
            before: before.get(&reader.id),
        })
        .collect();
    assignor.assign(&members, topics)
}

/// Every partition of a topic with subscribers has one owner, who subscribes to it.
fn check_complete(readers: &[Reader], topics: &Topics, target: &Target) {
    let mut owned = BTreeMap::new();
    for reader in readers {
        for &partition in &target[&reader.id] {
            assert!(reader.topics.contains(&partition.topic), "{} is not subscribed to {partition}", reader.id);
            assert!(topics.holds(partition), "{partition} does not exist");
            assert_eq!(owned.insert(partition, &reader.id), None, "{partition} has two owners");
        }
    }
    let subscribed: BTreeSet<TopicId> = readers.iter().flat_map(|reader| reader.topics.clone()).collect();
    let all: usize = subscribed.into_iter().map(|topic| topics.partitions(topic) as usize).sum();
    assert_eq!(owned.len(), all, "partitions have no owner");
    assert_eq!(target.len(), readers.len());
}

/// No partition could go to somebody with so much less that both would be nearer to each other.
fn check_even(readers: &[Reader], target: &Target) {
    for from in readers {
        for partition in &target[&from.id] {
            for to in readers.iter().filter(|to| to.topics.contains(&partition.topic)) {
                let (more, less) = (target[&from.id].len(), target[&to.id].len());
                assert!(more <= less + 1, "{partition} of {} ({more}) could go to {} ({less})", from.id, to.id);
            }
        }
    }
}

/// Partitions that some reader had and still reads, but another got.
fn moved(before: &Target, after: &Target) -> usize {
    let had =
        |(id, owned): (&Arc<str>, &BTreeSet<PartitionId>)| after.get(id).map_or(0, |now| owned.difference(now).count());
    before.iter().map(had).sum()
}

fn readers() -> impl Strategy<Value = Vec<Reader>> {
    let topics = prop::collection::btree_set((0..4u128).prop_map(TopicId), 0..4);
    let reader = (topics, prop::option::of(0..3usize), any::<bool>());
    prop::collection::vec(reader, 1..8).prop_map(|readers| {
        let reader = |(number, (topics, rack, fixed)): (usize, (BTreeSet<TopicId>, Option<usize>, bool))| Reader {
            id: format!("m{number}").into(),
            instance: fixed.then(|| format!("i{}", number * 7 % 5)),
            rack: rack.map(|rack| format!("r{rack}")),
            topics,
        };
        (0..).zip(readers).map(reader).collect()
    })
}

proptest! {
    #[test]
    fn everything_is_assigned_evenly(
        readers in readers(),
        others in readers(),
        first in prop::collection::vec(0..12usize, 4),
        second in prop::collection::vec(0..12usize, 4),
    ) {
        for assignor in Assignor::ALL {
            let mut before = Target::new();
            for (readers, topics) in [(&readers, image(&first)), (&others, image(&second)), (&readers, image(&first))] {
                let target = run(assignor, readers, &topics, &before);
                check_complete(readers, &topics, &target);
                if assignor == Assignor::Uniform {
                    check_even(readers, &target);
                    prop_assert_eq!(&run(assignor, readers, &topics, &target), &target, "at rest nothing moves");
                }
                before = target;
            }
        }
    }

    /// With one subscription, a member that comes takes its share and one that goes leaves its own; no other partition moves.
    #[test]
    fn only_what_has_to_moves(members in 1..12usize, partitions in 0..40usize) {
        let topics = image(&[partitions, 7]);
        let mut readers: Vec<Reader> = (0..members).map(|n| reader(&format!("m{n:02}"), &[0, 1])).collect();
        let before = run(Assignor::Uniform, &readers, &topics, &Target::new());
        readers.push(reader("a-new-one", &[0, 1]));
        let joined = run(Assignor::Uniform, &readers, &topics, &before);
        check_even(&readers, &joined);
        prop_assert_eq!(moved(&before, &joined), joined["a-new-one"].len());
        readers.remove(0);
        let left = run(Assignor::Uniform, &readers, &topics, &joined);
        check_even(&readers, &left);
        prop_assert_eq!(moved(&joined, &left), 0);
    }
}

#[test]
fn replicas_nearby_are_preferred_where_it_costs_nothing() {
    let topics = image(&[9]);
    let mut readers: Vec<Reader> = (0..3).map(|n| reader(&format!("m{n}"), &[0])).collect();
    for (reader, rack) in readers.iter_mut().zip(["r2", "r0", "r1"]) {
        reader.rack = Some(rack.to_owned());
    }
    let target = run(Assignor::Uniform, &readers, &topics, &Target::new());
    check_even(&readers, &target);
    for (member, first) in [("m0", 2), ("m1", 0), ("m2", 1)] {
        let near: BTreeSet<u32> = target[member].iter().map(|partition| partition.index).collect();
        assert_eq!(near, [first, first + 3, first + 6].into(), "{member}");
    }
    // Evenness comes before nearness.
    readers[1].rack = Some("r2".to_owned());
    check_even(&readers, &run(Assignor::Uniform, &readers, &topics, &Target::new()));
}

#[test]
fn ranges_of_equal_topics_go_together() {
    let topics = image(&[5, 5]);
    let mut readers = vec![reader("b", &[0, 1]), reader("a", &[0, 1]), reader("z", &[0])];
    readers[2].instance = Some("first".to_owned());
    let target = run(Assignor::Range, &readers, &topics, &Target::new());
    let of = |member: &str, topic| {
        let owned = target[member].iter().filter(|partition| partition.topic == TopicId(topic));
        owned.map(|partition| partition.index).collect::<Vec<u32>>()
    };
    assert_eq!([of("z", 0), of("a", 0), of("b", 0)], [vec![0, 1], vec![2, 3], vec![4]]);
    assert_eq!([of("z", 1), of("a", 1), of("b", 1)], [vec![], vec![0, 1, 2], vec![3, 4]]);
}
