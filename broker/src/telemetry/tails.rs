//! Which traced batches are not in object storage yet, so that an upload, much later, can be told in their traces.
//! Bounded, and empty without a collector; what it forgets costs a span, never a batch.

use crate::telemetry::child;
use millpond_log::{Offset, PartitionId};
use opentelemetry::Context;
use opentelemetry::trace::TraceContextExt;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// Most batches remembered; the oldest is forgotten first. Traces are samples, and a few for each upload are enough.
const BATCHES_MAX: usize = 256;

/// Traced batches of all partitions, oldest first.
#[derive(Default)]
pub(crate) struct TracedTails {
    batches: Mutex<VecDeque<TracedBatch>>,
}

struct TracedBatch {
    partition: PartitionId,
    base: Offset,
    /// Of the span that produced it. Not the span itself, which has long ended when the batch is uploaded.
    produce: Context,
}

impl TracedTails {
    /// Remembers the batch at `base`, if `produce` is in a trace that is kept.
    pub(crate) fn remember(&self, partition: PartitionId, base: Offset, produce: &Span) {
        if produce.is_disabled() {
            return;
        }
        let span = produce.context().span().span_context().clone();
        if !span.is_valid() || !span.is_sampled() {
            return;
        }
        let produce = Context::new().with_remote_span_context(span);
        let mut batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        if batches.len() == BATCHES_MAX {
            batches.pop_front();
        }
        batches.push_back(TracedBatch { partition, base, produce });
    }

    /// Takes out the batches in `offsets`: a span for each, within the batch's trace. A flush that fails shows there as one
    /// that failed; the one that follows it does not.
    pub(crate) fn uploads(&self, partition: PartitionId, offsets: &Range<Offset>) -> Vec<Span> {
        let mut batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        let (due, kept): (VecDeque<_>, VecDeque<_>) =
            batches.drain(..).partition(|batch| batch.partition == partition && offsets.contains(&batch.base));
        *batches = kept;
        drop(batches);
        due.iter().map(upload).collect()
    }
}

fn upload(batch: &TracedBatch) -> Span {
    let span = tracing::debug_span!(
        parent: None,
        "upload",
        partition = %batch.partition,
        base_offset = batch.base.0,
        otel.status_code = tracing::field::Empty,
    );
    child(&span, &batch.produce);
    span
}
