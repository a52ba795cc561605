//! How long acknowledgements and records may stay away around faults, and whether they did. Pure.
//!
//! What a machine does by itself comes on top of what a fault does. So on one that is not calm, as the time before any fault shows, a
//! limit is exceeded only by what exceeds it together with the longest time that nothing came then. On one that is rough nothing is
//! judged, and the report says so: it never calls kept what was not looked at.

#[cfg(test)]
mod tests;

use crate::gaps::{Doing, Gaps, Phase, Place};
use std::collections::BTreeMap;
use std::time::Duration;

/// A bound on the times without a sign, on the fault as on its end, each by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    /// The fault that it is on, by name; all if it names none.
    pub(crate) fault: Option<&'static str>,
    /// Whom it is on.
    pub(crate) whose: Whose,
    /// On what, and how much.
    pub(crate) bound: Bound,
}

/// Whose times are bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// Those of writes by our own client: others wait for what is silent by timeouts of theirs.
    SdkWrites,
    /// Those of reads and writes by all clients: where nobody falls silent, nobody has anything to wait for.
    Everybody,
}

/// On which of the times there is a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bound {
    /// On their median.
    Median(Duration),
    /// On the longest.
    Worst(Duration),
}

/// What came of the limits of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// There are none.
    Unlimited,
    /// All are kept, with this beyond them for what the machine does by itself.
    Kept { allowed_beyond: Duration },
    /// At least one is exceeded.
    Exceeded(Vec<String>),
    /// None was found to be exceeded, and not all were judged: why.
    NotJudged(String),
}

/// A machine on which undisturbed acknowledgements stay away no longer than this adds nothing to limits.
const CALM: Duration = Duration::from_millis(150);

/// One on which they stay away for longer than this tells nothing about limits of a few seconds.
const ROUGH: Duration = Duration::from_secs(1);

/// Judges what was measured around faults, on a machine that was as `quiet` says before the first.
pub(crate) fn judge(limits: &[Limit], gaps: &BTreeMap<Place, Gaps>, quiet: &BTreeMap<Doing, Gaps>) -> Judgement {
    if limits.is_empty() {
        return Judgement::Unlimited;
    }
    let undisturbed = match quiet.get(&Doing::Writes) {
        Some(gaps) if gaps.count() > 0 => gaps.worst(),
        _ => return Judgement::NotJudged("nothing was measured before the first fault".to_owned()),
    };
    if undisturbed > ROUGH {
        let why = format!(
            "before anything was done, {undisturbed:?} passed without an acknowledgement: the machine is too busy"
        );
        return Judgement::NotJudged(why);
    }
    let allowed_beyond = if undisturbed > CALM { undisturbed } else { Duration::ZERO };
    let (mut exceeded, mut missing) = (Vec::new(), Vec::new());
    for limit in limits {
        let bound: Vec<(&Place, &Gaps)> = gaps.iter().filter(|(place, _)| limit.is_on(place)).collect();
        if !limit.whose.all_are_in(&bound) {
            missing.push(format!("nothing was measured around {}", limit.fault.unwrap_or("a fault")));
        }
        exceeded.extend(bound.into_iter().filter_map(|(place, gaps)| limit.exceeded(place, gaps, allowed_beyond)));
    }
    if !exceeded.is_empty() {
        Judgement::Exceeded(exceeded)
    } else if !missing.is_empty() {
        Judgement::NotJudged(missing.join("; "))
    } else {
        Judgement::Kept { allowed_beyond }
    }
}

impl Limit {
    fn is_on(&self, place: &Place) -> bool {
        let of_fault = self.fault.is_none_or(|fault| fault == place.what);
        of_fault && (self.whose == Whose::Everybody || (place.doing == Doing::Writes && !place.librdkafka))
    }

    fn exceeded(&self, place: &Place, gaps: &Gaps, allowed_beyond: Duration) -> Option<String> {
        let (what, found, most) = match self.bound {
            Bound::Median(most) => ("half of the times", gaps.per_mille(500), most),
            Bound::Worst(most) => ("the longest time", gaps.worst(), most),
        };
        let sign = match place.doing {
            Doing::Writes => "an acknowledgement",
            Doing::Reads => "a record",
        };
        let beyond = match allowed_beyond {
            Duration::ZERO => String::new(),
            beyond => format!(" and {beyond:?} for the machine"),
        };
        (found > most + allowed_beyond)
            .then(|| format!("{place}: {what} without {sign}: {found:?}, at most {most:?}{beyond} allowed"))
    }
}

impl Whose {
    /// Whether there is a measure of everybody whom it means, around a fault: its end alone says nothing.
    fn all_are_in(self, found: &[(&Place, &Gaps)]) -> bool {
        let among = |doing, librdkafka| {
            let of =
                |place: &Place| place.phase == Phase::Fault && place.doing == doing && place.librdkafka == librdkafka;
            found.iter().any(|(place, gaps)| of(place) && gaps.count() > 0)
        };
        match self {
            Whose::SdkWrites => among(Doing::Writes, false),
            Whose::Everybody => {
                [Doing::Writes, Doing::Reads].into_iter().all(|doing| among(doing, false) && among(doing, true))
            }
        }
    }
}
