//! A run on the way: the fleet, its clients, and what was done to it when. Scenarios say what is done; this does it, and waits until
//! it can be seen.

use crate::clients::{self, PARTITIONS, TOPIC};
use crate::clock::{Nanos, now};
use crate::fleet::{Fleet, FleetOptions, PATIENCE, POLL};
use crate::gaps::{Clients, Doing, Mark, Phase};
use crate::history::{Event, Progress, Recorder};
use crate::librdkafka::{Librdkafka, Role};
use crate::network::Network;
use crate::pipeline::Pipeline;
use millpond_sdk::{Admin, NewTopic};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

/// Writers with the SDK, and the one with librdkafka.
const SDK_WRITERS: [u16; 2] = [0, 1];
const LIBRDKAFKA_WRITER: u16 = 10;
/// Writes single records to see what becomes of them.
const PROBE: u16 = 20;
/// Readers that read everything once: by the SDK, and by librdkafka.
pub(crate) const READERS: [u16; 2] = [0, 10];
/// Readers of pieces of the past.
const LOOKING_BACK: std::ops::Range<u16> = 20..24;

/// Records of each writer that have to be acknowledged in each partition before it counts as served again.
const SERVED: u32 = 5;

/// Whoever gets no further for so long stands still, however busy the machine is.
const STANDSTILL: Duration = Duration::from_secs(15);

/// The writers whose acknowledgements are measured, and whether they are librdkafka's.
pub(crate) fn writers() -> BTreeMap<u16, bool> {
    SDK_WRITERS.iter().map(|writer| (*writer, false)).chain([(LIBRDKAFKA_WRITER, true)]).collect()
}

/// The clients that are measured: the writers, and the readers that read everything once.
pub(crate) fn measured() -> Clients {
    let [by_sdk, by_librdkafka] = READERS;
    let readers = [((Doing::Reads, by_sdk), false), ((Doing::Reads, by_librdkafka), true)];
    writers().into_iter().map(|(writer, librdkafka)| ((Doing::Writes, writer), librdkafka)).chain(readers).collect()
}

/// How a scenario is run.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) network: Network,
    pub(crate) seed: u64,
    /// Takes the long waits short, and repeats less.
    pub(crate) short: bool,
    /// How long the mixed run does what it does.
    pub(crate) time: Duration,
    /// Leaves the folder of a scenario that went wrong.
    pub(crate) keep: bool,
}

/// A run on the way.
pub(crate) struct Stage {
    pub(crate) fleet: Fleet,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) random: StdRng,
    /// Takes the long waits short.
    pub(crate) short: bool,
    /// How long the mixed run does what it does.
    pub(crate) time: Duration,
    pub(crate) marks: Vec<Mark>,
    /// When nothing had been done yet, though clients ran.
    pub(crate) quiet: (Nanos, Nanos),
    /// Promises of the scenario's own that were broken.
    pub(crate) broken: Vec<String>,
    probes: u32,
    /// Large records sent so far.
    bulk: u32,
    writing: CancellationToken,
    reading: CancellationToken,
    writers: JoinSet<()>,
    readers: JoinSet<()>,
    others: Vec<(Role, Librdkafka)>,
    /// What reads the topic and writes another one, if the scenario has it.
    pub(crate) pipeline: Option<Pipeline>,
    story: bool,
}

impl Stage {
    /// Starts a fleet, makes the topic, and sets the clients to work on it.
    ///
    /// # Errors
    /// Why it cannot be run here, or does not come up.
    pub(crate) async fn set(options: FleetOptions, settings: &Settings) -> Result<Stage, String> {
        let Settings { network, seed, short, time, .. } = settings.clone();
        let (tick, workers) = (options.tick, options.workers);
        let fleet = Fleet::start(options, network).await?;
        let admin = Admin::new(&fleet.connect().await?);
        let mut topic = NewTopic::new(TOPIC);
        topic.partitions = Some(u32::from(PARTITIONS));
        topic.replication_factor = u32::try_from(fleet.size().min(3)).ok();
        // Small and young segments: uploads and trims happen between any two faults.
        let configs = [("segment.bytes", "262144"), ("segment.ms", "2000"), ("retention.ms", "-1")];
        topic.configs = configs.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        admin.create_topic(topic).await.map_err(|error| format!("the topic: {error}"))?;
        fleet.wait_until_in_sync().await?;
        let mut stage = Stage {
            fleet,
            recorder: Arc::default(),
            random: StdRng::seed_from_u64(seed),
            short,
            time,
            marks: Vec::new(),
            quiet: (0, 0),
            broken: Vec::new(),
            probes: 0,
            bulk: 0,
            writing: CancellationToken::new(),
            reading: CancellationToken::new(),
            writers: JoinSet::new(),
            readers: JoinSet::new(),
            others: Vec::new(),
            pipeline: None,
            story: std::env::var_os("FAULTS_STORY").is_some(),
        };
        stage.start_clients(seed, tick)?;
        if workers > 0 {
            stage.pipeline = Some(Pipeline::start(&stage.fleet, workers).await?);
        }
        stage.served().await?;
        let from = now();
        stage.more(50).await?;
        stage.quiet = (from, now());
        Ok(stage)
    }

    fn start_clients(&mut self, seed: u64, tick: Duration) -> Result<(), String> {
        let (bootstrap, kafka) = (self.fleet.bootstrap(), self.fleet.kafka());
        for writer in SDK_WRITERS {
            let recorder = Arc::clone(&self.recorder);
            self.writers.spawn(clients::write(writer, tick, bootstrap.clone(), recorder, self.writing.clone()));
        }
        let recorder = || Arc::clone(&self.recorder);
        let [by_sdk, by_librdkafka] = READERS;
        self.readers.spawn(clients::read_along(by_sdk, bootstrap.clone(), recorder(), self.reading.clone()));
        self.readers.spawn(clients::look_back(LOOKING_BACK, bootstrap, seed, recorder(), self.reading.clone()));
        let write = Librdkafka::start(Role::Write, LIBRDKAFKA_WRITER, tick, &kafka, recorder())?;
        let read = Librdkafka::start(Role::Read, by_librdkafka, tick, &kafka, recorder())?;
        self.others = vec![(Role::Write, write), (Role::Read, read)];
        Ok(())
    }

    /// Says what happens, to whoever wants to see it.
    pub(crate) fn tell(&self, what: &str) {
        if self.story {
            eprintln!("  {what}");
        }
    }

    /// Marks that something is about to be done to these brokers. The next `served` ends it.
    pub(crate) async fn mark(&mut self, what: impl Into<String>, victims: &[usize]) -> Result<(), String> {
        self.note(what.into(), Phase::Fault, victims).await
    }

    /// Marks that what was done to these brokers is about to be undone; so long it lasted. The next `served` ends the mark.
    pub(crate) async fn mark_end(&mut self, what: impl Into<String>, victims: &[usize]) -> Result<(), String> {
        let (what, until) = (what.into(), now());
        let begun = self.marks.iter_mut().rfind(|mark| mark.phase == Phase::Fault && mark.what == what);
        begun.into_iter().for_each(|mark| mark.until = until);
        self.note(what, Phase::Recovery, victims).await
    }

    async fn note(&mut self, what: String, phase: Phase, victims: &[usize]) -> Result<(), String> {
        let led = self.led_by(victims).await?;
        let mark = Mark { what, phase, at: now(), until: 0, led };
        self.tell(&format!("{mark}, of brokers {victims:?}, which lead {:?}", mark.led));
        self.marks.push(mark);
        Ok(())
    }

    /// The partitions that some of these brokers lead.
    async fn led_by(&self, brokers: &[usize]) -> Result<BTreeSet<u16>, String> {
        let leaders = self.leaders().await?;
        let led = leaders.into_iter().filter(|(_, leader)| leader.is_some_and(|leader| brokers.contains(&leader)));
        Ok(led.map(|(partition, _)| partition).collect())
    }

    /// Who leads each partition.
    pub(crate) async fn leaders(&self) -> Result<BTreeMap<u16, Option<usize>>, String> {
        let topics = self.fleet.last_known_topics().await?;
        let partitions = topics.iter().filter(|topic| topic.name == TOPIC).flat_map(|topic| &topic.partitions);
        let leader = |found: Option<millpond_sdk::BrokerId>| found.map(|leader| leader.0 as usize);
        Ok(partitions.map(|found| (u16::try_from(found.index).expect("few"), leader(found.leader))).collect())
    }

    /// Some broker that leads a partition.
    pub(crate) async fn some_leader(&mut self) -> Result<usize, String> {
        let leaders: Vec<usize> = self.leaders().await?.into_values().flatten().collect();
        leaders.choose(&mut self.random).copied().ok_or_else(|| "nobody leads anything".to_owned())
    }

    /// The broker that leads least.
    pub(crate) async fn some_follower(&mut self) -> Result<usize, String> {
        let mut led = vec![0; self.fleet.size()];
        self.leaders().await?.into_values().flatten().for_each(|leader| led[leader] += 1);
        let least = (0..led.len()).min_by_key(|broker| led[*broker]);
        least.ok_or_else(|| "there are no brokers".to_owned())
    }

    /// Some broker.
    pub(crate) fn some_broker(&mut self) -> usize {
        let size = self.fleet.size();
        self.random.random_range(0..size)
    }

    /// Waits until records that every writer sends from now on to every partition are acknowledged.
    ///
    /// # Errors
    /// They are not.
    pub(crate) async fn served(&mut self) -> Result<(), String> {
        self.more(SERVED).await?;
        let until = now();
        self.marks.iter_mut().filter(|mark| mark.until == 0).for_each(|mark| mark.until = until);
        Ok(())
    }

    /// Waits until so many records more of every writer are acknowledged in every partition.
    ///
    /// # Errors
    /// They are not.
    pub(crate) async fn more(&self, count: u32) -> Result<(), String> {
        let before = self.recorder.progress();
        let wanted: BTreeMap<(u16, u16), u32> = writers()
            .into_keys()
            .flat_map(|writer| clients::partitions().map(move |partition| (writer, partition)))
            .map(|at| (at, before.sent.get(&at).copied().unwrap_or_default() + count))
            .collect();
        let served = |progress: &Progress| {
            wanted.iter().all(|(at, wanted)| progress.acked.get(at).is_some_and(|acked| acked >= wanted))
        };
        self.until("writes to every partition are acknowledged", served).await.map_err(|error| {
            let progress = self.recorder.progress();
            let missing =
                wanted.iter().filter(|(at, wanted)| progress.acked.get(at).is_none_or(|acked| acked < wanted));
            let missing: Vec<&(u16, u16)> = missing.map(|(at, _)| at).collect();
            format!("{error}; writers and partitions without: {missing:?}")
        })
    }

    /// Waits until the readers have read on in every partition, from where they were.
    ///
    /// # Errors
    /// They do not.
    pub(crate) async fn read_since(&self, before: &Progress) -> Result<(), String> {
        let further = |progress: &Progress| {
            let mut positions = before.positions.iter().filter(|((reader, _), _)| READERS.contains(reader));
            positions.all(|(at, position)| progress.positions.get(at).is_some_and(|now| now > position))
        };
        self.until("readers go on in every partition", further).await
    }

    /// Lets things be as they are for a while, in which everything goes on: again and again, all writers and readers get further in
    /// every partition.
    ///
    /// # Errors
    /// One stands still.
    pub(crate) async fn goes_on_for(&mut self, time: Duration) -> Result<(), String> {
        let begun = tokio::time::Instant::now();
        loop {
            let on = async {
                let before = self.recorder.progress();
                self.more(SERVED).await?;
                self.read_since(&before).await
            };
            let on = tokio::time::timeout(STANDSTILL, on).await;
            on.unwrap_or_else(|_| Err(format!("somebody stands still for {STANDSTILL:?}")))
                .map_err(|error| format!("{:.0?} after it began: {error}", begun.elapsed()))?;
            if begun.elapsed() >= time {
                return Ok(());
            }
        }
    }

    /// Writes about so many bytes of large records, spread over all partitions, in the background.
    ///
    /// # Errors
    /// No broker answers.
    pub(crate) async fn write_bulk(&mut self, bytes: usize) -> Result<JoinHandle<()>, String> {
        let client = self.fleet.connect().await?;
        let first = self.bulk;
        self.bulk += u32::try_from(bytes / clients::BULK_BYTES).map_err(|error| error.to_string())?;
        Ok(tokio::spawn(clients::write_bulk(first..self.bulk, client, Arc::clone(&self.recorder))))
    }

    /// Waits until the clients are as far as `holds` says.
    ///
    /// # Errors
    /// They are not, for long.
    async fn until(&self, what: &str, holds: impl Fn(&Progress) -> bool) -> Result<(), String> {
        let waited = tokio::time::timeout(PATIENCE, async {
            let mut poll = tokio::time::interval(POLL);
            while !holds(&self.recorder.progress()) {
                poll.tick().await;
            }
        });
        waited.await.map_err(|_| format!("not within {PATIENCE:?}: {what}"))
    }

    /// Lets things be as they are for a while: some faults have to last.
    pub(crate) async fn last(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    /// Lets a random, short time pass.
    pub(crate) async fn some_time(&mut self) {
        let millis = self.random.random_range(50..800);
        self.last(Duration::from_millis(millis)).await;
    }

    /// Waits until every replica is in sync.
    ///
    /// # Errors
    /// They are not, for long.
    pub(crate) async fn in_sync(&mut self) -> Result<(), String> {
        self.fleet.wait_until_in_sync().await.map(|_| ())
    }

    /// Sends one record to a partition, with little patience; what it is told if it is not acknowledged.
    pub(crate) async fn probe(&mut self, partition: u16, patience: Duration) -> Result<Option<String>, String> {
        let client = self.fleet.connect().await?;
        let id = crate::payload::RecordId { writer: PROBE, partition, number: self.probes };
        self.probes += 1;
        let outcome = clients::try_one(id, &client, patience, &self.recorder).await;
        Ok(outcome.err().map(|error| error.to_string()))
    }

    /// Notes that a promise of the scenario's own is broken, unless it holds.
    pub(crate) fn expect(&mut self, holds: bool, promise: impl FnOnce() -> String) {
        if !holds {
            self.broken.push(promise());
        }
    }

    /// Stops the writers, and waits until they know the fate of all that they have sent.
    ///
    /// # Errors
    /// They do not come to an end.
    pub(crate) async fn stop_writing(&mut self) -> Result<(), String> {
        self.writing.cancel();
        let ended = async {
            while self.writers.join_next().await.is_some() {}
            if let Some(place) = self.others.iter().position(|(role, _)| *role == Role::Write) {
                self.others.remove(place).1.stop().await?;
            }
            Ok::<(), String>(())
        };
        let ended = tokio::time::timeout(PATIENCE * 2, ended).await;
        ended.unwrap_or_else(|_| Err("the writers do not learn what became of their records".to_owned()))
    }

    /// Waits until the readers have come to these ends, and stops them. Who has not come there is for the checker to say.
    ///
    /// # Errors
    /// The client of librdkafka fails.
    pub(crate) async fn stop_reading(&mut self, ends: &BTreeMap<u16, u64>) -> Result<(), String> {
        let there = |progress: &Progress| {
            READERS.iter().all(|reader| {
                ends.iter().all(|(partition, end)| {
                    progress.positions.get(&(*reader, *partition)).is_some_and(|position| position >= end)
                })
            })
        };
        if let Err(error) = self.until("readers come to the end", there).await {
            self.recorder.trouble(error);
        }
        self.reading.cancel();
        while self.readers.join_next().await.is_some() {}
        for (_, client) in self.others.drain(..) {
            client.stop().await?;
        }
        Ok(())
    }

    /// What clients told of failures so far with one of these words in it.
    pub(crate) fn told_of(&self, words: &[&str]) -> Vec<String> {
        let troubles = self.recorder.troubles().into_iter().chain(self.pipeline.iter().flat_map(Pipeline::troubles));
        troubles.filter(|text| words.iter().any(|word| text.contains(word))).collect()
    }

    /// All that was taken down.
    pub(crate) fn history(&self) -> (Vec<Event>, Vec<String>) {
        let (events, mut troubles) = self.recorder.take();
        troubles.extend(self.pipeline.iter().flat_map(Pipeline::troubles));
        (events, troubles)
    }
}
