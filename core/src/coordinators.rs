//! Coordinator shards: which shard a name belongs to, and which broker a shard belongs on. Pure arithmetic, the same on every broker.
//!
//! It never says who owns a shard: that is only what the metadata store says (rule O3).

use millpond_log::BrokerId;
use std::collections::{BTreeMap, BTreeSet};

/// Shards of each kind. Part of the key space: records lie below the number of their shard, so it never changes for a cluster.
///
/// Each is a lane of commits of its own. Sixteen keep a handful of brokers busy, and cost a broker that owns them all little.
pub const SHARDS: u32 = 16;

/// The shard that coordinates this name: a group, or a transactional id.
#[must_use]
pub fn shard_of(name: &str) -> u32 {
    let remainder = mix(name.bytes().fold(FNV_OFFSET, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME)));
    u32::try_from(remainder % u64::from(SHARDS)).expect("less than a number of 32 bits")
}

/// The broker that each shard belongs on, by the number of the shard; empty if no broker is alive.
///
/// No broker has more than one shard more than another. Each shard has its own order of preference of brokers, so that few shards
/// move when a broker comes or goes.
#[must_use]
pub fn placement(alive: &BTreeSet<BrokerId>) -> Vec<BrokerId> {
    let Some(brokers) = u32::try_from(alive.len()).ok().filter(|brokers| *brokers > 0) else { return Vec::new() };
    let (each, mut more) = (SHARDS / brokers, SHARDS % brokers);
    let mut held: BTreeMap<BrokerId, u32> = BTreeMap::new();
    let mut placed = Vec::new();
    for shard in 0..SHARDS {
        let takes = |broker: &BrokerId| {
            let held = held.get(broker).copied().unwrap_or(0);
            held < each || (held == each && more > 0)
        };
        let best = alive.iter().filter(|broker| takes(broker)).max_by_key(|broker| preference(shard, **broker));
        let best = *best.expect("the brokers together take as many shards as there are");
        let held = held.entry(best).or_default();
        *held += 1;
        more -= u32::from(*held > each);
        placed.push(best);
    }
    placed
}

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0100_0000_01b3;

fn preference(shard: u32, broker: BrokerId) -> u64 {
    mix(u64::from(shard) << 32 | u64::from(broker.0))
}

/// The finalizer of splitmix64: every bit of the input moves every bit of the result.
fn mix(bits: u64) -> u64 {
    let bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    fn brokers(ids: impl IntoIterator<Item = u32>) -> BTreeSet<BrokerId> {
        ids.into_iter().map(BrokerId).collect()
    }

    /// Keys are spelled by it, so it is the same for ever.
    #[test]
    fn a_name_stays_in_its_shard() {
        let names = ["", "g", "orders", "payments", "é/%"];
        assert_eq!(names.map(shard_of), [11, 4, 9, 15, 14]);
    }

    #[test]
    fn names_spread_over_all_shards() {
        let mut names = [0; SHARDS as usize];
        (0..1600).for_each(|n| names[shard_of(&format!("group-{n}")) as usize] += 1);
        assert!(names.iter().all(|names| (50..200).contains(names)), "{names:?}");
    }

    #[test]
    fn shards_spread_evenly_over_any_number_of_brokers() {
        assert!(placement(&brokers([])).is_empty());
        for count in 1..=40 {
            let alive = brokers((0..count).map(|n| n * 7 + 1));
            let placed = placement(&alive);
            assert_eq!(placed.len(), SHARDS as usize);
            let held = |broker: &BrokerId| placed.iter().filter(|owner| *owner == broker).count();
            let (least, most) = (alive.iter().map(held).min(), alive.iter().map(held).max());
            assert!(most.expect("some") - least.expect("some") <= 1, "{count} brokers: {least:?} to {most:?}");
        }
    }

    #[test]
    fn shards_of_a_lost_broker_move_and_few_others() {
        let (all, left) = (placement(&brokers(0..5)), placement(&brokers(0..4)));
        let moved = all.iter().zip(&left).filter(|(was, now)| was.0 < 4 && was != now).count();
        assert!(moved <= 6, "{moved} shards moved between brokers that stayed");
    }
}
