//! Placements are spread over racks and brokers, the same for the same seed, and hold for a fleet of one.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn hosts(racks: &[Option<u8>]) -> Vec<Host> {
    let host = |(id, rack): (u32, &Option<u8>)| Host {
        broker: BrokerId(id),
        rack: rack.map(|rack| format!("rack-{rack}")),
        load: Load::default(),
    };
    (0..).zip(racks).map(host).collect()
}

fn place(hosts: &[Host], partitions: usize, replicas: u32, seed: u64) -> Vec<Vec<BrokerId>> {
    let mut placer = Placer::new(hosts, [], seed);
    (0..partitions).map(|_| placer.place(replicas).expect("enough brokers")).collect()
}

/// Numbers of `what` for each broker, the least and the greatest.
fn spread(hosts: &[Host], placed: &[Vec<BrokerId>], what: impl Fn(&[BrokerId], BrokerId) -> bool) -> (usize, usize) {
    let counts = hosts.iter().map(|host| placed.iter().filter(|replicas| what(replicas, host.broker)).count());
    let counts: Vec<usize> = counts.collect();
    (*counts.iter().min().expect("a host"), *counts.iter().max().expect("a host"))
}

#[test]
fn one_broker_takes_everything_and_no_second_replica() {
    let one = hosts(&[None]);
    assert_eq!(place(&one, 3, 1, 7), vec![vec![BrokerId(0)]; 3]);
    let refused = Placer::new(&one, [], 7).place(2).expect_err("there is one broker");
    assert_eq!(
        refused.to_string(),
        "replication factor 2 is not possible with 1 live broker; use 1 or start more brokers"
    );
    let refused = Placer::new(&hosts(&[None, None]), [], 7).place(3).expect_err("there are two brokers");
    assert!(refused.to_string().contains("with 2 live brokers; use at most 2 or"), "{refused}");
}

#[test]
fn a_small_topic_goes_to_whoever_carries_least() {
    let mut three = hosts(&[None, None, None]);
    three[0].load = Load { leaders: 5, replicas: 5 };
    three[1].load = Load { leaders: 1, replicas: 9 };
    three[2].load = Load { leaders: 5, replicas: 2 };
    assert_eq!(place(&three, 1, 2, 1), [[BrokerId(1), BrokerId(2)]]);
}

/// A broker that has just joined gets no more than its share of a new topic.
#[test]
fn a_new_broker_is_not_flooded() {
    let mut four = hosts(&[None, None, None, None]);
    for host in &mut four[..3] {
        host.load = Load { leaders: 1_000, replicas: 3_000 };
    }
    let placed = place(&four, 40, 3, 3);
    assert_eq!(spread(&four, &placed, |replicas, broker| replicas[0] == broker), (10, 10));
    assert_eq!(spread(&four, &placed, |replicas, broker| replicas.contains(&broker)), (30, 30));
}

/// A topic that grows goes on where it was: the partitions it has count.
#[test]
fn growth_evens_out_what_is_there() {
    let three = hosts(&[None, None, None]);
    let existing = vec![vec![BrokerId(0), BrokerId(1)]; 4];
    let mut placer = Placer::new(&three, existing.iter().map(Vec::as_slice), 5);
    let added: Vec<Vec<BrokerId>> = (0..8).map(|_| placer.place(2).expect("three brokers")).collect();
    let all: Vec<Vec<BrokerId>> = existing.into_iter().chain(added).collect();
    assert_eq!(spread(&three, &all, |replicas, broker| replicas[0] == broker), (4, 4));
    let (least, most) = spread(&three, &all, |replicas, broker| replicas.contains(&broker));
    assert!(most - least <= 2, "{least}..{most}");
}

/// When a broker dies its leaderships go to its second replicas: those are spread too.
#[test]
fn followers_of_one_leader_are_spread() {
    let five = hosts(&[None; 5]);
    let placed = place(&five, 500, 3, 9);
    for leader in &five {
        let heirs: Vec<BrokerId> =
            placed.iter().filter(|replicas| replicas[0] == leader.broker).map(|replicas| replicas[1]).collect();
        for heir in five.iter().filter(|heir| heir.broker != leader.broker) {
            let inherits = heirs.iter().filter(|broker| **broker == heir.broker).count();
            assert!((10..=45).contains(&inherits), "{} inherits {inherits} of 100", heir.broker);
        }
    }
}

/// No rack has two replicas more than a rack that still has a free broker.
fn racks_are_even(hosts: &[Host], replicas: &[BrokerId]) -> bool {
    let mut racks: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for host in hosts {
        let name = host.rack.clone().unwrap_or_else(|| format!("alone-{}", host.broker));
        let (used, size) = racks.entry(name).or_default();
        *used += usize::from(replicas.contains(&host.broker));
        *size += 1;
    }
    let most = racks.values().map(|(used, _)| *used).max().expect("a rack");
    racks.values().filter(|(used, size)| used < size).all(|(used, _)| used + 1 >= most)
}

proptest! {
    #[test]
    fn placements_are_spread_whatever_the_fleet(
        racks in proptest::collection::vec(proptest::option::of(0u8..4), 1..12),
        partitions in 1usize..60,
        replicas in 1u32..6,
        seed: u64,
    ) {
        let hosts = hosts(&racks);
        let replicas = replicas.min(u32::try_from(hosts.len()).expect("few"));
        let placed = place(&hosts, partitions, replicas, seed);
        prop_assert_eq!(&placed, &place(&hosts, partitions, replicas, seed));
        for chosen in &placed {
            prop_assert_eq!(chosen.iter().collect::<BTreeSet<_>>().len(), replicas as usize);
            prop_assert!(racks_are_even(&hosts, chosen), "{:?} over {:?}", chosen, racks);
        }
        let (least, most) = spread(&hosts, &placed, |chosen, broker| chosen[0] == broker);
        prop_assert!(most - least <= 1, "leaders {}..{}", least, most);
        let alike = racks.iter().all(Option::is_none);
        let (least, most) = spread(&hosts, &placed, |chosen, broker| chosen.contains(&broker));
        prop_assert!(!alike || most - least <= 2, "replicas {}..{}", least, most);
    }
}
