//! The topics that the records of one topic go through, and where in them a record is. Pure.

use crate::error::Error;
use millpond_log::ErrorCode;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A topic, its delay topics in the order in which records go through them, and its dead-letter topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ladder {
    pub(super) source: Arc<str>,
    pub(super) rungs: Vec<(Arc<str>, Duration)>,
    /// `None`: the partition waits instead.
    pub(super) dead_letters: Option<Arc<str>>,
}

/// Where a record was read: from the topic itself, or from a delay topic, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    Source,
    Rung(usize),
}

/// Which topics are read, and what each is.
pub(super) type Places = BTreeMap<Arc<str>, (Arc<Ladder>, Place)>;

/// What is read for these topics.
///
/// # Errors
/// `InvalidConfig`: a topic would be read as two things, or for ever.
pub(super) fn places(ladders: &[Arc<Ladder>]) -> Result<Places, Error> {
    let mut places = Places::new();
    for ladder in ladders {
        let delays = ladder.rungs.iter().enumerate().map(|(rung, (name, _))| (name, Place::Rung(rung)));
        for (name, place) in std::iter::once((&ladder.source, Place::Source)).chain(delays) {
            if places.insert(Arc::clone(name), (Arc::clone(ladder), place)).is_some() {
                let message = format!("topic `{name}` is there twice: as a topic to read, or as a delay topic of one");
                return Err(Error::new(ErrorCode::InvalidConfig, message));
            }
        }
    }
    if let Some(name) =
        ladders.iter().filter_map(|ladder| ladder.dead_letters.as_ref()).find(|name| places.contains_key(*name))
    {
        let message = format!("dead letters would go to `{name}`, which is read: they would never rest");
        return Err(Error::new(ErrorCode::InvalidConfig, message));
    }
    Ok(places)
}
