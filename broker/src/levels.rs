//! Levels: what is read off the broker's parts when someone looks at the metrics. It changes nothing and holds no broker alive.

use crate::broker::{Broker, Inner};
use crate::budget::Connections;
use crate::catalog::{Local, PartitionHandle, Topic};
use crate::partitions::view::PartitionView;
use opentelemetry::KeyValue;
use opentelemetry::metrics::{AsyncInstrument, Meter};
use std::sync::{Arc, Weak};

/// Most topics that have series of their own: the first by name. All others share the series of topic `other topics`, which
/// no topic can be called. So the number of series is bounded whatever clients create.
const TOPICS_MAX: usize = 200;

const OTHER_TOPICS: &str = "other topics";

/// Reads levels off one broker.
#[derive(Clone)]
struct Levels {
    meter: Meter,
    broker: Weak<Inner>,
}

/// Adds the levels of `broker` to its registry.
pub(crate) fn register(broker: &Broker) {
    let levels = Levels { meter: broker.metrics().meter(), broker: broker.downgrade() };
    levels.wal();
    levels.memory();
    levels.connections();
    levels.cache();
    levels.session();
    levels.topics();
}

impl Levels {
    fn gauge(
        &self,
        name: &'static str,
        help: &'static str,
        read: impl Fn(&Inner) -> Option<u64> + Send + Sync + 'static,
    ) {
        let observe = self.observer(read);
        self.meter.u64_observable_gauge(name).with_description(help).with_callback(observe).build();
    }

    fn counter(&self, name: &'static str, help: &'static str, read: impl Fn(&Inner) -> u64 + Send + Sync + 'static) {
        let observe = self.observer(move |inner| Some(read(inner)));
        self.meter.u64_observable_counter(name).with_description(help).with_callback(observe).build();
    }

    fn observer(
        &self,
        read: impl Fn(&Inner) -> Option<u64> + Send + Sync + 'static,
    ) -> impl Fn(&dyn AsyncInstrument<u64>) + Send + Sync + 'static {
        let broker = self.broker.clone();
        move |observer| {
            if let Some(value) = broker.upgrade().and_then(|inner| read(&inner)) {
                observer.observe(value, &[]);
            }
        }
    }

    fn wal(&self) {
        self.gauge("millpond_wal_live_bytes", "Bytes of WAL frames that some partition needs", |inner| {
            Some(inner.wal.usage().live_bytes)
        });
        self.gauge("millpond_wal_file_bytes", "Bytes of WAL files in use", |inner| Some(inner.wal.usage().file_bytes));
        self.gauge("millpond_wal_free_bytes", "Bytes that the WAL can still take; at 0 produce is refused", |inner| {
            Some(inner.wal.usage().free_bytes)
        });
        self.gauge("millpond_wal_limit_bytes", "Most bytes of WAL files", |inner| Some(inner.wal.usage().bytes_max));
    }

    fn memory(&self) {
        self.gauge("millpond_produce_memory_bytes", "Bytes of batches that wait for the WAL's sync", |inner| {
            let limit = u64::from(inner.config.produce_memory_bytes);
            Some(limit - (inner.produce_memory.available_permits() as u64).min(limit))
        });
        self.gauge("millpond_produce_memory_limit_bytes", "At so many, produce waits", |inner| {
            Some(u64::from(inner.config.produce_memory_bytes))
        });
        self.gauge("millpond_request_memory_bytes", "Bytes of requests that are received or answered", |inner| {
            Some(inner.budget.requests_held() as u64)
        });
        self.gauge("millpond_request_memory_limit_bytes", "At so many, clients wait", |inner| {
            Some(u64::from(inner.config.request_memory_bytes))
        });
        self.gauge("millpond_answer_memory_bytes", "Bytes that were read and wait for their readers", |inner| {
            Some(inner.budget.answers.held() as u64)
        });
        self.gauge("millpond_answer_memory_limit_bytes", "At so many, readers wait", |inner| {
            Some(u64::from(inner.config.answer_memory_bytes))
        });
        self.gauge("millpond_cache_memory_bytes", "Bytes of pages held in memory", |inner| {
            Some(inner.tiered.cache().counters().memory_bytes)
        });
        self.gauge("millpond_cache_memory_limit_bytes", "Most bytes of pages in memory", |inner| {
            Some(inner.config.cache_memory_bytes)
        });
    }

    fn connections(&self) {
        let each = |read: fn(&Connections) -> u64| {
            let broker = self.broker.clone();
            move |observer: &dyn AsyncInstrument<u64>| {
                let Some(inner) = broker.upgrade() else { return };
                for (door, connections) in inner.connections.named() {
                    observer.observe(read(connections), &[KeyValue::new("door", door)]);
                }
            }
        };
        self.meter
            .u64_observable_gauge("millpond_connections")
            .with_description(
                "Connections that are open; of the internal door those on which nobody has proven himself",
            )
            .with_callback(each(|connections| connections.open() as u64))
            .build();
        self.meter
            .u64_observable_counter("millpond_connections_refused")
            .with_description("Connections closed at once, there being as many as may be")
            .with_callback(each(Connections::refused))
            .build();
    }

    fn cache(&self) {
        let broker = self.broker.clone();
        let pages = move |observer: &dyn AsyncInstrument<u64>| {
            let Some(inner) = broker.upgrade() else { return };
            let counted = inner.tiered.cache().counters();
            // Who waited for the disk was counted as missing memory first.
            let fetched = counted.misses.saturating_sub(counted.disk_hits);
            for (source, pages) in
                [("memory", counted.memory_hits), ("disk", counted.disk_hits), ("object_store", fetched)]
            {
                observer.observe(pages, &[KeyValue::new("source", source)]);
            }
        };
        self.meter
            .u64_observable_counter("millpond_cache_pages")
            .with_description("Pages that readers asked for, by where they were")
            .with_callback(pages)
            .build();
        self.counter("millpond_cache_gets", "GETs that the cache has sent, answered or not", |inner| {
            inner.tiered.cache().counters().gets
        });
        self.counter("millpond_cache_read_ahead_pages", "Pages fetched before a reader asked", |inner| {
            inner.tiered.cache().counters().read_ahead_pages
        });
        self.counter("millpond_cache_evicted_pages", "Pages pushed out of memory by others", |inner| {
            inner.tiered.cache().counters().evictions
        });
        self.counter("millpond_cache_corrupt_pages", "Pages on disk that did not read back, fetched anew", |inner| {
            inner.tiered.cache().counters().corrupt_pages
        });
    }

    fn session(&self) {
        self.gauge(
            "millpond_session_held",
            "1 while the broker holds its lease; without it, it leads nothing",
            |inner| Some(u64::from(inner.session.get().is_some())),
        );
        self.gauge("millpond_coordinator_shards", "Shards of consumer groups that this broker serves", |inner| {
            Some(inner.coordinators.groups.serving() as u64)
        });
        let broker = self.broker.clone();
        let age = move |observer: &dyn AsyncInstrument<f64>| {
            let age = broker.upgrade().and_then(|inner| inner.session.age());
            if let Some(age) = age {
                observer.observe(age.as_secs_f64(), &[]);
            }
        };
        self.meter
            .f64_observable_gauge("millpond_lease_age_seconds")
            .with_unit("s")
            .with_description("Time since the lease was last renewed")
            .with_callback(age)
            .build();
    }

    fn topics(&self) {
        self.gauge("millpond_topics", "Topics served", |inner| Some(inner.catalog.tables().topics().count() as u64));
        self.gauge("millpond_partitions", "Partitions held", |inner| Some(count(inner, |_| true)));
        self.gauge("millpond_partitions_led", "Partitions led by this broker", |inner| {
            Some(count(inner, |local| local.view.borrow().visible.leads))
        });
        self.per_topic("millpond_topic_records", "Records from the log start to the high watermark", |_, _, view| {
            view.visible.hw.0.saturating_sub(view.visible.log_start.0)
        });
        self.per_topic("millpond_topic_uncommitted_records", "Records above the high watermark", |_, _, view| {
            view.visible.end.0.saturating_sub(view.visible.hw.0)
        });
        self.per_topic(
            "millpond_topic_untiered_records",
            "Committed records not in object storage yet",
            |_, _, view| view.visible.hw.0.saturating_sub(view.visible.tiered_end.0),
        );
        self.per_topic("millpond_topic_deleted_records", "Offsets below the log start", |_, _, view| {
            view.visible.log_start.0
        });
        self.per_topic("millpond_topic_tail_bytes", "Bytes in the WAL", |inner, partition, _| {
            inner.wal.partition_bytes(partition.id)
        });
        self.per_topic("millpond_topic_tiered_bytes", "Bytes in object storage", |_, _, view| view.manifest.size());
    }

    /// A gauge with one series for each topic, up to the bound: the sum over its partitions.
    fn per_topic(
        &self,
        name: &'static str,
        help: &'static str,
        read: impl Fn(&Inner, &PartitionHandle, &PartitionView) -> u64 + Send + Sync + 'static,
    ) {
        let broker = self.broker.clone();
        let observe = move |observer: &dyn AsyncInstrument<u64>| {
            let Some(inner) = broker.upgrade() else { return };
            let sum = |topic: &Arc<Topic>| -> u64 {
                let held = topic.partitions.iter().filter_map(|handle| Some((handle, handle.local.as_ref()?)));
                held.map(|(handle, local)| read(&inner, handle, &local.view.borrow())).sum()
            };
            let tables = inner.catalog.tables();
            for topic in tables.topics().take(TOPICS_MAX) {
                observer.observe(sum(topic), &[KeyValue::new("topic", topic.record.name.to_string())]);
            }
            if tables.topics().nth(TOPICS_MAX).is_some() {
                let others = tables.topics().skip(TOPICS_MAX).map(sum).sum();
                observer.observe(others, &[KeyValue::new("topic", OTHER_TOPICS)]);
            }
        };
        self.meter.u64_observable_gauge(name).with_description(help).with_callback(observe).build();
    }
}

fn count(inner: &Inner, which: impl Fn(&Local) -> bool) -> u64 {
    let tables = inner.catalog.tables();
    let held = tables.topics().flat_map(|topic| &topic.partitions).filter_map(|handle| handle.local.as_ref());
    held.filter(|local| which(local)).count() as u64
}
