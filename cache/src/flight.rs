//! Single flight: which pages are being fetched, and who is told when they arrive.
//!
//! A fetch belongs to the cache, not to the reader that caused it, so a reader may go away at any time. It does no I/O.

use crate::error::{CacheError, Fault};
use crate::page::{Object, Page, PageKey};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// How far the fetch of a page is.
#[derive(Clone, Debug)]
pub(crate) enum Progress {
    /// Not here yet; the last fault, if one was met.
    Waiting(Option<Arc<Fault>>),
    /// It ended.
    Done(Result<Page, CacheError>),
}

/// What a reader gets for a page that it did not find at first.
pub(crate) enum Joined {
    /// It arrived in the meantime.
    Ready(Page),
    /// Some fetch will bring it.
    Waiting(watch::Receiver<Progress>),
}

/// The pages being fetched.
#[derive(Debug, Default)]
pub(crate) struct Flights {
    table: Mutex<HashMap<PageKey, Arc<watch::Sender<Progress>>>>,
}

impl Flights {
    pub(crate) fn len(&self) -> usize {
        self.table().len()
    }

    /// Joins the fetches of `demanded` and opens those that are missing, of `ahead` too; all in one step, so that two readers
    /// of one range do not split it between them.
    ///
    /// `look_again` finds a page that arrived since it was looked for first: a fetch puts its page into memory before it ends.
    /// Whoever gets slots has to fill them.
    pub(crate) fn join(
        self: &Arc<Flights>,
        object: &Arc<str>,
        demanded: impl Iterator<Item = u32>,
        ahead: impl Iterator<Item = u32>,
        look_again: impl Fn(&PageKey) -> Option<Page>,
    ) -> (Vec<(u32, Joined)>, Slots) {
        let mut table = self.table();
        let mut open = BTreeMap::new();
        let mut enter = |page: u32| {
            let key = PageKey { object: object.clone(), page };
            if let Some(flight) = table.get(&key) {
                return Ok(flight.clone());
            }
            if let Some(page) = look_again(&key) {
                return Err(page);
            }
            let flight = Arc::new(watch::Sender::new(Progress::Waiting(None)));
            table.insert(key, flight.clone());
            open.insert(page, flight.clone());
            Ok(flight)
        };
        let joined = demanded
            .map(|page| match enter(page) {
                Ok(flight) => (page, Joined::Waiting(flight.subscribe())),
                Err(found) => (page, Joined::Ready(found)),
            })
            .collect();
        for page in ahead {
            let _already_there = enter(page);
        }
        (joined, Slots { flights: self.clone(), object: object.clone(), open })
    }

    fn table(&self) -> MutexGuard<'_, HashMap<PageKey, Arc<watch::Sender<Progress>>>> {
        // Every change of the table is a single call, so it is whole even after a panic.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Pages that one task has to bring. What it leaves open when it ends, for whatever reason, ends with `Closed`, so that no reader waits
/// for a task that is gone.
pub(crate) struct Slots {
    flights: Arc<Flights>,
    object: Arc<str>,
    open: BTreeMap<u32, Arc<watch::Sender<Progress>>>,
}

impl Slots {
    pub(crate) fn key(&self, page: u32) -> PageKey {
        PageKey { object: self.object.clone(), page }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    pub(crate) fn pages(&self) -> Vec<u32> {
        self.open.keys().copied().collect()
    }

    /// Ends the fetch of `page`. If it succeeded, the page is in memory by now.
    pub(crate) fn end(&mut self, page: u32, result: Result<Page, CacheError>) {
        if let Some(flight) = self.open.remove(&page) {
            self.flights.table().remove(&PageKey { object: self.object.clone(), page });
            flight.send_replace(Progress::Done(result));
        }
    }

    /// Ends all that is open with one error.
    pub(crate) fn fail(&mut self, error: &CacheError) {
        for page in self.pages() {
            self.end(page, Err(error.clone()));
        }
    }

    /// Lets waiting readers know what is in the way, should they run out of time.
    pub(crate) fn tell(&self, fault: &Arc<Fault>) {
        for flight in self.open.values() {
            flight.send_replace(Progress::Waiting(Some(fault.clone())));
        }
    }

    /// Whether any reader waits for any of the pages.
    pub(crate) fn awaited(&self) -> bool {
        self.open.values().any(|flight| flight.receiver_count() > 0)
    }

    /// Takes the open pages apart into runs of adjoining pages, each of at most `pages_max`.
    pub(crate) fn into_runs(mut self, pages_max: u32) -> Vec<Slots> {
        let mut runs: Vec<Slots> = Vec::new();
        let mut end = None;
        while let Some((page, flight)) = self.open.pop_first() {
            match runs.last_mut() {
                Some(run) if end == Some(page) && run.len() < pages_max as usize => {
                    run.open.insert(page, flight);
                }
                _ => runs.push(Slots {
                    flights: self.flights.clone(),
                    object: self.object.clone(),
                    open: BTreeMap::from([(page, flight)]),
                }),
            }
            end = page.checked_add(1);
        }
        runs
    }

    /// The open pages of a run: they adjoin, and the first ones end first.
    pub(crate) fn run(&self) -> Range<u32> {
        let first = self.open.first_key_value().map_or(0, |(page, _)| *page);
        let last = self.open.last_key_value().map_or(first, |(page, _)| page + 1);
        first..last
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        self.fail(&CacheError::Closed);
    }
}

/// Waits until a fetch ends. Cancel safe; the fetch goes on without the reader.
pub(crate) async fn arrival(flight: &mut watch::Receiver<Progress>) -> Result<Page, CacheError> {
    match flight.wait_for(|progress| matches!(progress, Progress::Done(_))).await.as_deref() {
        Ok(Progress::Done(result)) => result.clone(),
        // `wait_for` only answers with what it was asked for, and slots always end before their sender goes.
        Ok(Progress::Waiting(_)) | Err(_) => Err(CacheError::Closed),
    }
}

/// The error of a reader whose deadline passed while it waited.
pub(crate) fn overdue(object: &Object, flight: &watch::Receiver<Progress>) -> CacheError {
    match &*flight.borrow() {
        Progress::Waiting(fault) => CacheError::unavailable(object, fault.clone()),
        Progress::Done(Err(error)) => error.clone(),
        Progress::Done(Ok(_)) => CacheError::unavailable(object, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing(_: &PageKey) -> Option<Page> {
        None
    }

    #[test]
    fn open_pages_fall_into_runs() {
        let flights = Arc::new(Flights::default());
        let (_, slots) = flights.join(&"a".into(), [1, 2, 3, 7, 9, 10].into_iter(), 11..13, nothing);
        let runs: Vec<_> = slots.into_runs(2).iter().map(Slots::run).collect();
        assert_eq!(runs, [1..3, 3..4, 7..8, 9..11, 11..13]);
        assert_eq!(flights.len(), 0, "dropped slots leave nothing behind");
    }

    #[test]
    fn a_page_is_opened_once_and_dropped_slots_wake_their_readers() {
        let flights = Arc::new(Flights::default());
        let (_, first) = flights.join(&"a".into(), 0..2, 2..3, nothing);
        let (joined, second) = flights.join(&"a".into(), 1..4, 4..4, nothing);
        assert_eq!((first.pages(), second.pages()), (vec![0, 1, 2], vec![3]));
        assert!(first.awaited());
        drop(first);
        let ended = |joined: &Joined| match joined {
            Joined::Waiting(flight) => matches!(&*flight.borrow(), Progress::Done(Err(CacheError::Closed))),
            Joined::Ready(_) => panic!("nothing was ready"),
        };
        assert_eq!(
            joined.iter().map(|(page, joined)| (*page, ended(joined))).collect::<Vec<_>>(),
            [(1, true), (2, true), (3, false)]
        );
    }

    #[test]
    fn a_page_that_arrived_in_between_is_not_fetched_again() {
        let flights = Arc::new(Flights::default());
        let there = |key: &PageKey| (key.page == 5).then(|| Page::new(bytes::Bytes::from_static(b"x")));
        let (joined, slots) = flights.join(&"a".into(), 5..6, 6..6, there);
        assert!(matches!(&joined[..], [(5, Joined::Ready(_))]));
        assert!(slots.is_empty());
    }
}
