//! Makes a failing run smaller: fewer steps, and fewer kinds of faults. What is left breaks the same invariant.

use crate::weather::Weather;
use crate::{Run, Script, run_script};

/// The smallest run found that breaks what `script` breaks; `None` if it breaks nothing.
///
/// Leaving a kind of fault out, or ending sooner, is another run: each that still fails in the same way is gone on with.
#[must_use]
pub fn shrink(script: &Script) -> Option<(Script, Run)> {
    let mut best = script.clone();
    let mut run = run_script(&best, false);
    let broken = kind(&run)?;
    let fails = |tried: &Script| Some(run_script(tried, false)).filter(|run| kind(run).as_ref() == Some(&broken));
    loop {
        let mut smaller = false;
        for fault in Weather::faults() {
            let mut tried = best.clone();
            if tried.calm.insert(fault)
                && let Some(found) = fails(&tried)
            {
                (best, run, smaller) = (tried, found, true);
            }
        }
        let mut cut = best.steps / 2;
        while cut > 0 {
            let tried = Script { steps: best.steps - cut, ..best.clone() };
            match fails(&tried) {
                Some(found) => (best, run, smaller) = (tried, found, true),
                None => cut /= 2,
            }
            cut = cut.min(best.steps / 2);
        }
        if !smaller {
            return Some((best, run));
        }
    }
}

/// Which invariant is broken: the first word of what is said of it.
fn kind(run: &Run) -> Option<String> {
    run.violation.as_ref()?.split_whitespace().next().map(str::to_owned)
}
