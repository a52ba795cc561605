//! One fetch stream: carries out commands, makes one read at a time, pushes what it brings.
//!
//! Pulled by the transport: while the client does not take pushes, nothing more is read for it.

use super::status::going_away;
use super::subscriptions::{Effect, READ_BYTES_MAX, Read, Subscriptions};
use crate::api::{FetchRequest, FetchedPartition};
use crate::budget::Held;
use futures::future::BoxFuture;
use futures::{Stream, StreamExt};
use millpond_log::Offset;
use millpond_proto::{RecordBatches, v1};
use std::collections::VecDeque;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use tonic::Status;

/// With this many bytes of pushes not taken, no further read is begun: a stream holds two reads at most.
const QUEUED_BYTES_MAX: usize = READ_BYTES_MAX;

/// Resolves with one entry for each partition asked for, and the memory they take. May be dropped.
pub(super) type Fetched = BoxFuture<'static, (Vec<FetchedPartition>, Held)>;

/// The pushes of a stream of commands.
pub(super) fn push(
    commands: impl Stream<Item = Result<v1::FetchRequest, Status>> + Send + Unpin + 'static,
    fetch: impl Fn(FetchRequest) -> Fetched + Send + 'static,
    stop: CancellationToken,
) -> impl Stream<Item = Result<v1::FetchResponse, Status>> + Send {
    let stream = FetchStream {
        commands,
        fetch,
        stop,
        listening: true,
        over: false,
        subscriptions: Subscriptions::default(),
        reading: None,
        pushes: VecDeque::new(),
        queued_bytes: 0,
    };
    futures::stream::unfold(stream, |mut stream| async move { stream.next().await.map(|push| (push, stream)) }).fuse()
}

struct FetchStream<C, F> {
    commands: C,
    fetch: F,
    stop: CancellationToken,
    /// The client has not ended its side.
    listening: bool,
    over: bool,
    subscriptions: Subscriptions,
    reading: Option<Reading>,
    /// The pushes of one read share the memory it took.
    pushes: VecDeque<(v1::FetchResponse, Arc<Held>)>,
    /// Of batches in `pushes`.
    queued_bytes: usize,
}

struct Reading {
    whom: Vec<(u64, Offset)>,
    fetched: Fetched,
}

impl<C, F> FetchStream<C, F>
where
    C: Stream<Item = Result<v1::FetchRequest, Status>> + Unpin,
    F: Fn(FetchRequest) -> Fetched,
{
    /// The next push, the status that ends the stream, or its end.
    async fn next(&mut self) -> Option<Result<v1::FetchResponse, Status>> {
        while !self.over {
            if self.reading.is_none() && self.queued_bytes < QUEUED_BYTES_MAX {
                self.reading = self.subscriptions.read().map(|Read { whom, request }| {
                    let fetched = (self.fetch)(request);
                    Reading { whom, fetched }
                });
            }
            if !self.listening && self.reading.is_none() && self.pushes.is_empty() {
                return None;
            }
            // The next read is under way while the last one's pushes are taken.
            let has_pushes = !self.pushes.is_empty();
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return self.end(going_away()),
                command = self.commands.next(), if self.listening => {
                    if let Err(status) = self.take_in(command) {
                        return self.end(status);
                    }
                }
                fetched = fetched(&mut self.reading), if self.reading.is_some() => self.read(fetched),
                () = std::future::ready(()), if has_pushes => return self.take_out().map(Ok),
            }
        }
        None
    }

    fn end(&mut self, status: Status) -> Option<Result<v1::FetchResponse, Status>> {
        (self.over, self.reading) = (true, None);
        Some(Err(status))
    }

    fn take_in(&mut self, command: Option<Result<v1::FetchRequest, Status>>) -> Result<(), Status> {
        let Some(command) = command else {
            self.listening = false;
            return Ok(());
        };
        match self.subscriptions.obey(command?)? {
            Effect::None => {}
            // The read under way would keep the newcomer waiting.
            Effect::Wanting => self.reading = None,
            Effect::Push(push) => self.pushes.push_back((*push, Arc::default())),
        }
        Ok(())
    }

    fn read(&mut self, (fetched, held): (Vec<FetchedPartition>, Held)) {
        let Some(Reading { whom, .. }) = self.reading.take() else { return };
        let held = Arc::new(held);
        for push in self.subscriptions.answered(&whom, fetched) {
            self.queued_bytes += size(&push);
            self.pushes.push_back((push, Arc::clone(&held)));
        }
    }

    fn take_out(&mut self) -> Option<v1::FetchResponse> {
        let (push, _held) = self.pushes.pop_front()?;
        self.queued_bytes -= size(&push);
        Some(push)
    }
}

fn size(push: &v1::FetchResponse) -> usize {
    push.records.as_ref().map_or(0, RecordBatches::size)
}

async fn fetched(reading: &mut Option<Reading>) -> (Vec<FetchedPartition>, Held) {
    match reading {
        Some(reading) => (&mut reading.fetched).await,
        None => std::future::pending().await,
    }
}
