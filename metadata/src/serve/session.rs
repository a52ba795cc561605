//! One stream of watches: what the client asks on it, and what it is told. Every watch pulls for itself, so that a busy one
//! holds up none. A progress notice never overtakes an event of the stream.

use super::Door;
use super::convert;
use super::status::{self, COMPACTED};
use crate::kv::{Interval, Kv as _, KvError, Revision, Watch, WatchBatch};
use etcd_client::EventType;
use etcd_client::proto::{PbEvent, PbWatchRequest, PbWatchRequestUnion, PbWatchResponse};
use futures::StreamExt;
use futures::stream::{BoxStream, SelectAll};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tokio::sync::watch as tokio_watch;
use tokio::time::{Instant, Interval as Ticks, MissedTickBehavior};
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::{Status, Streaming};

/// How often watches that want notices of progress get one unasked: as etcd's.
const NOTICE_INTERVAL: Duration = Duration::from_secs(600);

/// The id of what concerns no one watch, or none that there is.
const NO_WATCH: i64 = -1;

/// Filters of a watch, by etcd's numbers.
const NO_PUT: i32 = 0;
const NO_DELETE: i32 = 1;

/// What came of one watch.
type Heard = (i64, Result<WatchBatch, KvError>);

struct Watcher {
    /// Every event up to and with this revision was handed on.
    complete: Revision,
    /// Whether it wants notices unasked.
    notify: bool,
    filters: Vec<i32>,
    /// Ends its part of `heard`.
    _ends: DropGuard,
}

/// What a client wants to watch.
struct Wanted {
    id: i64,
    keys: Interval,
    from: i64,
    notify: bool,
    filters: Vec<i32>,
    with_previous: bool,
}

pub(super) struct Session {
    door: Door,
    requests: Streaming<PbWatchRequest>,
    watchers: BTreeMap<i64, Watcher>,
    heard: SelectAll<BoxStream<'static, Heard>>,
    next_id: i64,
    /// The revision that every watch has to reach before the notice of progress that was asked for.
    progress: Option<Revision>,
    /// Tells every watch that progress was asked for.
    asked: tokio_watch::Sender<()>,
    ticks: Ticks,
    /// What to say next.
    out: VecDeque<PbWatchResponse>,
}

impl Session {
    pub(super) fn new(door: Door, requests: Streaming<PbWatchRequest>) -> Session {
        let mut ticks = tokio::time::interval_at(Instant::now() + NOTICE_INTERVAL, NOTICE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Session {
            door,
            requests,
            watchers: BTreeMap::new(),
            heard: SelectAll::new(),
            next_id: 0,
            progress: None,
            asked: tokio_watch::channel(()).0,
            ticks,
            out: VecDeque::new(),
        }
    }

    /// What to say next; `None` when the client has nothing more to ask, and an error at the end of the server.
    pub(super) async fn next(&mut self) -> Option<Result<PbWatchResponse, Status>> {
        loop {
            if let Some(response) = self.out.pop_front() {
                return Some(Ok(response));
            }
            tokio::select! {
                request = self.requests.message() => match request {
                    Ok(Some(request)) => self.take(request).await,
                    Ok(None) => return None,
                    Err(error) => return Some(Err(error)),
                },
                Some((id, batch)) = self.heard.next(), if !self.heard.is_empty() => match batch {
                    Ok(batch) => self.hand_on(id, batch),
                    Err(KvError::Compacted(revision)) => self.compacted(id, revision),
                    Err(error) => return Some(Err(status::of(&error))),
                },
                _ = self.ticks.tick() => self.notice(),
                () = self.door.stop.cancelled() => return Some(Err(status::stopped())),
            }
        }
    }

    async fn take(&mut self, request: PbWatchRequest) {
        match request.request_union {
            Some(PbWatchRequestUnion::CreateRequest(create)) => {
                // An empty key is the first of all.
                let key = if create.key.is_empty() { vec![0] } else { create.key };
                let wanted = Wanted {
                    id: create.watch_id,
                    keys: convert::interval(key, create.range_end),
                    from: create.start_revision,
                    notify: create.progress_notify,
                    filters: create.filters,
                    with_previous: create.prev_kv,
                };
                self.create(wanted).await;
            }
            Some(PbWatchRequestUnion::CancelRequest(cancel)) => {
                self.end(PbWatchResponse { watch_id: cancel.watch_id, ..self.response() });
            }
            Some(PbWatchRequestUnion::ProgressRequest(_)) => self.ask_for_progress(),
            // A request of a later version of the API; etcd passes over it too.
            None => {}
        }
    }

    async fn create(&mut self, wanted: Wanted) {
        let refused = if wanted.with_previous {
            Some("the embedded metadata store does not keep previous values; use etcd")
        } else if self.watchers.contains_key(&wanted.id) && wanted.id != 0 {
            Some("mvcc: duplicate watch ID provided on the WatchStream")
        } else {
            None
        };
        if let Some(reason) = refused {
            let response = PbWatchResponse { watch_id: NO_WATCH, created: true, canceled: true, ..self.response() };
            return self.say(PbWatchResponse { cancel_reason: reason.to_owned(), ..response });
        }
        let id = if wanted.id == 0 { self.free_id() } else { wanted.id };
        let from = match convert::unsigned(wanted.from) {
            Revision::ABSENT => self.door.store.newest().next(),
            from => from,
        };
        let watch = match self.door.store.watch(wanted.keys, from).await {
            Ok(watch) => watch,
            Err(error) => {
                let canceled = PbWatchResponse { watch_id: id, created: true, canceled: true, ..self.response() };
                return self.say(PbWatchResponse { cancel_reason: error.to_string(), ..canceled });
            }
        };
        let ends = CancellationToken::new();
        let mut asked = self.asked.subscribe();
        if self.progress.is_some() {
            asked.mark_changed();
        }
        self.heard.push(pull(Pulled { id, watch, asked, ends: ends.clone() }));
        let complete = Revision(from.0.saturating_sub(1));
        let watcher = Watcher { complete, notify: wanted.notify, filters: wanted.filters, _ends: ends.drop_guard() };
        self.watchers.insert(id, watcher);
        self.say(PbWatchResponse { watch_id: id, created: true, ..self.response() });
    }

    fn free_id(&mut self) -> i64 {
        while self.watchers.contains_key(&self.next_id) {
            self.next_id += 1;
        }
        self.next_id += 1;
        self.next_id - 1
    }

    /// Hands on what a watch has seen.
    fn hand_on(&mut self, id: i64, batch: WatchBatch) {
        // It was canceled with this under way.
        let Some(watcher) = self.watchers.get_mut(&id) else { return };
        let revision = batch.revision;
        watcher.complete = revision;
        let dropped = |kind: EventType| match kind {
            EventType::Put => watcher.filters.contains(&NO_PUT),
            EventType::Delete => watcher.filters.contains(&NO_DELETE),
        };
        let events: Vec<PbEvent> = convert::events(batch).filter(|event| !dropped(event.r#type())).collect();
        if !events.is_empty() {
            let header = Some(self.door.header(revision));
            self.say(PbWatchResponse { header, watch_id: id, events, ..PbWatchResponse::default() });
        }
        self.notice_if_reached();
    }

    fn compacted(&mut self, id: i64, revision: Revision) {
        let compact_revision = convert::signed(revision);
        let response = PbWatchResponse { watch_id: id, compact_revision, ..self.response() };
        self.end(PbWatchResponse { cancel_reason: COMPACTED.to_owned(), ..response });
    }

    /// Ends the watch that `last` is for, if there is one, with it as its last word.
    fn end(&mut self, last: PbWatchResponse) {
        if self.watchers.remove(&last.watch_id).is_some() {
            self.say(PbWatchResponse { canceled: true, ..last });
            self.notice_if_reached();
        }
    }

    /// Notices for those who want them unasked.
    fn notice(&mut self) {
        if self.watchers.values().any(|watcher| watcher.notify) {
            self.ask_for_progress();
        }
    }

    fn ask_for_progress(&mut self) {
        self.progress = Some(self.door.store.newest());
        self.asked.send_replace(());
        self.notice_if_reached();
    }

    fn notice_if_reached(&mut self) {
        let Some(asked) = self.progress else { return };
        if self.watchers.values().all(|watcher| watcher.complete >= asked) {
            self.progress = None;
            let header = Some(self.door.header(asked));
            self.say(PbWatchResponse { header, watch_id: NO_WATCH, ..PbWatchResponse::default() });
        }
    }

    fn response(&self) -> PbWatchResponse {
        PbWatchResponse { header: Some(self.door.header_now()), ..PbWatchResponse::default() }
    }

    fn say(&mut self, response: PbWatchResponse) {
        self.out.push_back(response);
    }
}

/// A watch, and what makes it say more than events.
struct Pulled {
    id: i64,
    watch: Box<dyn Watch>,
    asked: tokio_watch::Receiver<()>,
    ends: CancellationToken,
}

/// What a watch sees until it is ended, or cannot go on.
fn pull(pulled: Pulled) -> BoxStream<'static, Heard> {
    let heard = futures::stream::unfold(Some(pulled), |pulled| async {
        let mut pulled = pulled?;
        loop {
            let batch = tokio::select! {
                () = pulled.ends.cancelled() => return None,
                asked = pulled.asked.changed() => match asked {
                    Ok(()) => pulled.watch.request_progress().await.err().map(Err),
                    Err(_) => return None,
                },
                batch = pulled.watch.next() => Some(batch),
            };
            if let Some(batch) = batch {
                let id = pulled.id;
                let next = batch.is_ok().then_some(pulled);
                return Some(((id, batch), next));
            }
        }
    });
    Box::pin(heard)
}
