//! What one seed draws before anything happens: how large the cluster is, what may go wrong in it, and how often (swarm testing).

use crate::rng::Rng;
use crate::world::actions::{ACTIONS, Action};
use std::collections::BTreeSet;
use std::fmt;

/// Partitions of one run at most.
const PARTITIONS_MAX: u32 = 4;

/// A topic to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TopicPlan {
    pub(crate) replicas: u32,
    pub(crate) partitions: u32,
    pub(crate) min_isr: u32,
}

/// How a run is set up.
#[derive(Clone, Debug)]
pub(crate) struct Weather {
    pub(crate) brokers: u32,
    pub(crate) topics: Vec<TopicPlan>,
    /// How often each action is drawn, in the order of `ACTIONS`; 0 for a fault that this run does not have.
    pub(crate) weights: Vec<u32>,
    /// Faults after which nothing happens.
    left_out: Vec<Action>,
    /// Of 1000 steps, how many are faults.
    pub(crate) faults: u32,
    /// Of 1000 messages, how many are very late.
    pub(crate) late: u32,
    /// Of 1000 messages, how many are lost, and how many arrive twice.
    pub(crate) lost: u32,
    pub(crate) doubled: u32,
    /// Of 1000 messages, how many overtake others of their connection.
    pub(crate) overtaking: u32,
    /// Of 1000 puts, how many fail in some way.
    pub(crate) puts_failing: u32,
    /// Whether brokers begin with clocks that are off.
    pub(crate) clocks_differ: bool,
}

/// What may befall messages and puts.
const RATES: [&str; 5] = ["late", "lost", "doubled", "overtaking", "puts_failing"];

impl Weather {
    /// The names of all faults.
    pub(crate) fn faults() -> Vec<String> {
        let actions = ACTIONS.iter().filter(|(.., fault)| *fault).map(|(action, ..)| format!("{action:?}"));
        actions.chain(RATES.map(str::to_owned)).collect()
    }

    /// Has these faults never happen. They are drawn all the same, so that the others come when they came.
    pub(crate) fn leave_out(&mut self, faults: &BTreeSet<String>) {
        let left_out = |(action, _, fault): &&(Action, u32, bool)| *fault && faults.contains(&format!("{action:?}"));
        self.left_out = ACTIONS.iter().filter(left_out).map(|(action, ..)| *action).collect();
        let rates = [&mut self.late, &mut self.lost, &mut self.doubled, &mut self.overtaking, &mut self.puts_failing];
        for (name, rate) in RATES.iter().zip(rates) {
            if faults.contains(*name) {
                *rate = 0;
            }
        }
    }

    /// What happens next.
    pub(crate) fn next(&self, rng: &mut Rng) -> Action {
        let fault = rng.per_mille(self.faults);
        let drawn = || ACTIONS.iter().zip(&self.weights).filter(move |((_, _, other), _)| *other == fault);
        let total: u32 = drawn().map(|(_, weight)| weight).sum();
        let mut at = u32::try_from(rng.below(total as usize)).expect("weights are small");
        for ((action, ..), weight) in drawn() {
            match at.checked_sub(*weight) {
                Some(left) => at = left,
                None if self.left_out.contains(action) => return Action::Wait,
                None => return *action,
            }
        }
        Action::Wait
    }

    pub(crate) fn draw(rng: &mut Rng) -> Weather {
        let weights = ACTIONS
            .iter()
            .map(|(_, weight, fault)| match rng.below(4) {
                0 if *fault => 0,
                1 => weight / 2 + 1,
                2 => weight * 2,
                _ => *weight,
            })
            .collect();
        // Few, mostly: faults meet there.
        let brokers = [3, 3, 3, 4, 4, 5, 6, 7][rng.below(8)];
        let min_isr = [1, 2, 2, 2, 2, 2, 3, 3][rng.below(8)];
        let mut topics = vec![TopicPlan { replicas: 3, partitions: rng.between(1, 2), min_isr }];
        while topics.iter().map(|topic| topic.partitions).sum::<u32>() < PARTITIONS_MAX && rng.per_mille(400) {
            let replicas = rng.between(1, 3);
            topics.push(TopicPlan { replicas, partitions: 1, min_isr: rng.between(1, replicas) });
        }
        let rough = |rng: &mut Rng, most| if rng.per_mille(250) { 0 } else { rng.between(0, most) };
        Weather {
            brokers,
            topics,
            weights,
            left_out: Vec::new(),
            faults: rng.between(8, 45),
            late: rough(rng, 40),
            lost: rough(rng, 60),
            doubled: rough(rng, 60),
            overtaking: rough(rng, 150),
            puts_failing: rough(rng, 300),
            clocks_differ: rng.per_mille(500),
        }
    }
}

impl fmt::Display for Weather {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Weather {
            brokers,
            topics,
            weights,
            left_out,
            faults: often,
            late,
            lost,
            doubled,
            overtaking,
            puts_failing,
            clocks_differ,
        } = self;
        write!(f, "brokers={brokers} topics=")?;
        for TopicPlan { replicas, partitions, min_isr } in topics {
            write!(f, "[{partitions}x{replicas} min {min_isr}]")?;
        }
        write!(
            f,
            " often={often} late={late} lost={lost} doubled={doubled} overtaking={overtaking} puts_failing={puts_failing} clocks_differ={clocks_differ} faults="
        )?;
        let faults = ACTIONS
            .iter()
            .zip(weights)
            .filter(|((action, _, fault), weight)| *fault && **weight > 0 && !left_out.contains(action));
        let faults: Vec<String> = faults.map(|((action, ..), weight)| format!("{action:?}:{weight}")).collect();
        f.write_str(&faults.join(","))
    }
}
