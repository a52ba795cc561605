//! A watch on etcd: it survives the loss of its member, hands out each event once, and never splits a revision.
//!
//! It says so when history is gone; what to do then is the caller's (rule Z2).

use super::link::{Link, Links};
use super::problem::{ConnectError, Problem};
use super::{Pause, convert, unanswered};
use crate::kv::{BoxFuture, Interval, KvError, Revision, Watch, WatchBatch};
use etcd_client::{GetOptions, WatchStream};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Silence after which etcd is asked for a sign of life.
const SILENCE: Duration = Duration::from_secs(5);

/// Silence after which the watch goes on at another member (rule Z3).
const SILENCE_MAX: Duration = Duration::from_secs(15);

/// Pause before progress is asked for again: etcd keeps silent while the watch catches up.
const PROGRESS_AGAIN: Duration = Duration::from_millis(100);

pub(super) struct EtcdWatch {
    links: Arc<Links>,
    keys: Interval,
    /// The first revision that was not handed out yet.
    from: Revision,
    /// How long to look for a member.
    deadline: Duration,
    stream: Option<Stream>,
    /// The revision that a progress notice has to reach.
    progress: Option<Revision>,
}

struct Stream {
    link: Link,
    responses: WatchStream,
    silence: Silence,
}

/// How long nothing has come. It holds instants, since a wait may be dropped and begun anew all the time.
#[derive(Clone, Copy)]
struct Silence {
    /// When something last came.
    heard: Instant,
    /// When it was first asked for anything after that, and when last.
    asked: Option<(Instant, Instant)>,
}

impl Silence {
    fn from(heard: Instant) -> Silence {
        Silence { heard, asked: None }
    }

    fn ask(&mut self, now: Instant) {
        self.asked = Some((self.asked.map_or(now, |(first, _)| first), now));
    }

    /// When to ask; soon again if it is asked for progress.
    fn ask_at(&self, progress: bool) -> Instant {
        let last = self.asked.map_or(self.heard, |(_, last)| last);
        last + if progress { PROGRESS_AGAIN } else { SILENCE }
    }

    /// When to give the member up. Not before it has had time to answer: for long, nobody may have listened.
    fn lost_at(&self) -> Option<Instant> {
        self.asked.map(|(first, _)| (self.heard + SILENCE_MAX).max(first + (SILENCE_MAX - SILENCE)))
    }
}

impl EtcdWatch {
    pub(super) async fn open(
        links: Arc<Links>,
        keys: Interval,
        from: Revision,
        deadline: Duration,
    ) -> Result<EtcdWatch, KvError> {
        let mut watch = EtcdWatch { links, keys, from, deadline, stream: None, progress: None };
        watch.stream = Some(watch.connect().await?);
        Ok(watch)
    }

    /// Opens the stream at the first member that can.
    async fn connect(&self) -> Result<Stream, KvError> {
        let until = Instant::now() + self.deadline;
        let mut pause = Pause::new(until);
        loop {
            let reason = match self.connect_once().await {
                Ok(stream) => return Ok(stream),
                Err(error) if error.problem == Problem::Restored => return Err(KvError::Restored(error.to_string())),
                Err(error) => error.to_string(),
            };
            if !pause.wait().await {
                return Err(KvError::Unavailable(reason));
            }
        }
    }

    async fn connect_once(&self) -> Result<Stream, ConnectError> {
        let link = self.links.link().await?;
        let (key, options) = convert::watch(&self.keys, self.from);
        let (mut kv, mut watch) = (link.kv.clone(), link.watch.clone());
        let opened = async {
            // After a linearizable read the member has applied all that was acknowledged before, compactions too.
            kv.get(key.clone(), Some(GetOptions::new().with_count_only())).await?;
            watch.watch(key, Some(options)).await
        };
        let failed = |said: &str| {
            self.links.lost(&link);
            ConnectError::new("", Problem::Silent, said)
        };
        match tokio::time::timeout(self.links.attempt(), opened).await {
            Ok(Ok(responses)) => Ok(Stream { link: link.clone(), responses, silence: Silence::from(Instant::now()) }),
            Ok(Err(error)) => Err(failed(&super::failure::reason(&error))),
            Err(_) => Err(failed(&unanswered(self.links.attempt()))),
        }
    }

    async fn next_batch(&mut self) -> Result<WatchBatch, KvError> {
        loop {
            if self.stream.is_none() {
                self.stream = Some(self.connect().await?);
                self.ask_for_progress().await;
            }
            let Some(stream) = &mut self.stream else { continue };
            let (ask_at, lost_at) = (stream.silence.ask_at(self.progress.is_some()), stream.silence.lost_at());
            let until = lost_at.map_or(ask_at, |lost_at| lost_at.min(ask_at));
            match tokio::time::timeout_at(until, stream.responses.message()).await {
                // No await below: a dropped call has either not moved the place, or handed out the events.
                Ok(Ok(Some(response))) => {
                    stream.silence = Silence::from(Instant::now());
                    if let Some(batch) = self.take(&response)? {
                        return Ok(batch);
                    }
                }
                Ok(Ok(None)) => self.lost("etcd closed the watch"),
                Ok(Err(error)) => self.lost(&super::failure::reason(&error)),
                Err(_) if lost_at.is_some_and(|lost_at| lost_at <= Instant::now()) => self.lost("nothing was heard"),
                Err(_) => self.ask_for_progress_or_life().await,
            }
        }
    }

    /// What a response hands out, if anything. The place moves with it.
    fn take(&mut self, response: &etcd_client::WatchResponse) -> Result<Option<WatchBatch>, KvError> {
        if response.compact_revision() > 0 {
            self.stream = None;
            return Err(KvError::Compacted(convert::unsigned(response.compact_revision())));
        }
        if response.canceled() {
            let reason = response.cancel_reason().to_owned();
            self.lost(&reason);
            // Whatever it was, at the next member it may not be; if it is, `connect` has the last word.
            return match reason.contains("permission denied") {
                true => Err(KvError::Unavailable(reason)),
                false => Ok(None),
            };
        }
        if let Some(batch) = convert::batch(response, self.from) {
            self.from = batch.revision.next();
            self.progress = self.progress.filter(|&asked| asked > batch.revision);
            return Ok(Some(batch));
        }
        if response.created() || !response.events().is_empty() {
            return Ok(None);
        }
        let revision = convert::revision(response.header());
        if self.progress.is_some_and(|asked| revision >= asked) {
            self.progress = None;
            self.from = self.from.max(revision.next());
            return Ok(Some(WatchBatch { revision, events: Vec::new() }));
        }
        if self.stream.as_ref().is_some_and(|stream| stream.link.progress_ordered) {
            self.from = self.from.max(revision.next());
        }
        Ok(None)
    }

    fn lost(&mut self, reason: &str) {
        if let Some(stream) = self.stream.take() {
            tracing::info!(reason, from = %self.from, "a watch of the metadata goes on at another member");
            self.links.lost(&stream.link);
        }
    }

    async fn ask_for_progress(&mut self) {
        if self.progress.is_some() {
            self.ask_for_progress_or_life().await;
        }
    }

    async fn ask_for_progress_or_life(&mut self) {
        let Some(stream) = &mut self.stream else { return };
        stream.silence.ask(Instant::now());
        if let Err(error) = stream.responses.request_progress().await {
            self.lost(&error.to_string());
        }
    }
}

impl Watch for EtcdWatch {
    fn next(&mut self) -> BoxFuture<'_, Result<WatchBatch, KvError>> {
        Box::pin(self.next_batch())
    }

    fn request_progress(&mut self) -> BoxFuture<'_, Result<(), KvError>> {
        Box::pin(async {
            // A member may lag behind; what counts is where the store stands now.
            self.progress = Some(super::revision_now(&self.links, self.deadline).await?);
            self.ask_for_progress().await;
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits in slices of a second, as who follows does; returns what was asked, and when it was given up.
    fn slices(mut silence: Silence, from: Instant) -> (Vec<u64>, u64) {
        let mut asked = Vec::new();
        for second in 0.. {
            let now = from + Duration::from_secs(second);
            if silence.lost_at().is_some_and(|lost_at| lost_at <= now) {
                return (asked, second);
            }
            if silence.ask_at(false) <= now {
                silence.ask(now);
                asked.push(second);
            }
        }
        unreachable!("it is silent")
    }

    #[test]
    fn silence_is_counted_however_the_wait_is_cut() {
        let now = Instant::now();
        assert_eq!(slices(Silence::from(now), now), (vec![5, 10], 15));
        // Nobody listened for a minute: it is asked before it is given up.
        let later = now + Duration::from_secs(60);
        assert_eq!(slices(Silence::from(now), later), (vec![0, 5], 10));
    }
}
