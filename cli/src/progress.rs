//! How far long work is: a bar on a terminal, a plain line every ten seconds otherwise. On standard error, since standard output
//! carries results only.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;
use tokio::time::Instant;

const PLAIN_INTERVAL: Duration = Duration::from_secs(10);

/// Progress of one piece of work.
pub(crate) struct Progress {
    what: &'static str,
    bar: Option<ProgressBar>,
    total: Option<u64>,
    done: u64,
    said: Instant,
}

impl Progress {
    /// Begins; `total` if it is known. Times are told by `now`.
    pub(crate) fn begin(what: &'static str, total: Option<u64>, now: Instant) -> Progress {
        let bar = std::io::stderr().is_terminal().then(|| {
            let target = ProgressDrawTarget::stderr_with_hz(5);
            let bar = ProgressBar::with_draw_target(total, target);
            let template = match total {
                Some(_) => "{prefix} {bar:40} {human_pos}/{human_len} {per_sec} {eta}",
                None => "{prefix} {spinner} {human_pos} {per_sec}",
            };
            let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
            bar.set_style(style);
            bar.set_prefix(what);
            bar
        });
        Progress { what, bar, total, done: 0, said: now }
    }

    /// Counts work done.
    pub(crate) fn add(&mut self, count: u64, now: Instant) {
        self.done += count;
        match &self.bar {
            Some(bar) => bar.inc(count),
            None if now >= self.said + PLAIN_INTERVAL => {
                self.said = now;
                let of = self.total.map(|total| format!(" of {total}")).unwrap_or_default();
                eprintln!("{}: {}{of}", self.what, self.done);
            }
            None => {}
        }
    }

    /// Takes the bar away.
    pub(crate) fn end(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}
