//! A pipeline from the topic that all scenarios write to into another one: workers of one group, each in a process of its own, that read,
//! process and write in transactions. What is done to it is in `script.rs`, what it came to in `finale.rs`; `check.rs` judges.

pub(crate) mod check;
pub(crate) mod finale;
mod ledger;
mod outputs;
pub(crate) mod script;
pub(crate) mod worker;
mod workers;

use crate::clients::TOPIC;
use crate::clock::now;
use crate::fleet::{Fleet, PATIENCE, POLL};
use crate::stage::Stage;
use ledger::Ledger;
use millpond_proto::v1::groups_client::GroupsClient;
use millpond_proto::v1::transactions_client::TransactionsClient;
use millpond_proto::v1::{FindCoordinatorRequest, FindTransactionCoordinatorRequest};
use millpond_sdk::{Admin, NewTopic};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use workers::{Place, Workers};

/// Where the pipeline writes to.
pub(crate) const SINK: &str = "faults-out";

/// How many partitions that has: not as many as the input.
pub(crate) const SINK_PARTITIONS: u16 = 4;

/// Its group.
const GROUP: &str = "pipeline";

/// Transactions that have to be committed before the pipeline counts as going on again.
const GOES_ON: u64 = 5;

/// The pipeline of a run.
pub(crate) struct Pipeline {
    ledger: Arc<Ledger>,
    workers: Workers,
    place: Place,
}

/// What it came to, for the report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) inputs: u64,
    pub(crate) outputs: u64,
    pub(crate) committed: u64,
    /// Those of them that were by our own SDK.
    pub(crate) by_sdk: u64,
    /// Transactions that were aborted on purpose, and by need.
    pub(crate) aborted: (u64, u64),
    /// Outputs of transactions that nobody sees who reads committed records.
    pub(crate) hidden: u64,
    /// Workers that were silent for too long or replaced in the middle of a transaction, and could not commit it.
    pub(crate) fenced: u64,
    /// Processes that worked.
    pub(crate) lives: u64,
    /// The longest time without a commit, from the first worker's start to the halt.
    pub(crate) standstill: Duration,
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Summary { inputs, outputs, committed, by_sdk, aborted: (meant, forced), .. } = self;
        let Summary { hidden, fenced, lives, standstill, .. } = self;
        write!(
            f,
            "{inputs} inputs, {outputs} outputs; transactions: {committed} committed, {by_sdk} of them by the SDK, {meant} aborted on purpose and {forced} by need, which hide {hidden} outputs; \
             {fenced} zombies fenced; {lives} processes; at most {:.1} s without a commit",
            standstill.as_secs_f64()
        )
    }
}

/// The transactional id of a worker.
fn transactional_id(worker: u16) -> String {
    format!("pipeline-{worker}")
}

impl Pipeline {
    /// Makes the topic of outputs, and starts so many workers.
    ///
    /// # Errors
    /// They cannot be started here.
    pub(crate) async fn start(fleet: &Fleet, workers: u16) -> Result<Pipeline, String> {
        let admin = Admin::new(&fleet.connect().await?);
        let mut topic = NewTopic::new(SINK);
        topic.partitions = Some(u32::from(SINK_PARTITIONS));
        topic.replication_factor = u32::try_from(fleet.size().min(3)).ok();
        let configs = [("segment.bytes", "262144"), ("segment.ms", "2000"), ("retention.ms", "-1")];
        topic.configs = configs.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        admin.create_topic(topic).await.map_err(|error| format!("the topic of outputs: {error}"))?;
        let ledger = Arc::<Ledger>::default();
        let place = Place { kafka: fleet.kafka(), grpc: fleet.bootstrap() };
        let workers = Workers::start(workers, &place, &ledger);
        Ok(Pipeline { ledger, workers, place })
    }

    /// What workers told that went wrong.
    pub(crate) fn troubles(&self) -> Vec<String> {
        self.ledger.troubles()
    }

    /// Starts the workers again after they were ended.
    fn start_again(&mut self) {
        self.workers = Workers::start(self.workers.count(), &self.place, &self.ledger);
    }
}

/// Waits until transactions that begin from now on are committed.
///
/// # Errors
/// They are not, for long.
pub(crate) async fn goes_on(stage: &Stage) -> Result<(), String> {
    let Some(pipeline) = &stage.pipeline else { return Ok(()) };
    let since = now();
    let waited = tokio::time::timeout(PATIENCE, async {
        let mut poll = tokio::time::interval(POLL);
        while pipeline.ledger.committed_since(since) < GOES_ON {
            poll.tick().await;
        }
    });
    waited.await.map_err(|_| {
        format!("the pipeline stands still for {PATIENCE:?}; last told: {}", pipeline.ledger.last_words().join("; "))
    })
}

/// Waits until a worker has a transaction open.
///
/// # Errors
/// It begins none, for long.
pub(crate) async fn in_transaction(stage: &Stage, worker: u16) -> Result<(), String> {
    let pipeline = stage.pipeline.as_ref().ok_or("there is no pipeline")?;
    let waited = tokio::time::timeout(PATIENCE, async {
        let mut poll = tokio::time::interval(POLL / 4);
        while !pipeline.ledger.has_open(worker) {
            poll.tick().await;
        }
    });
    waited.await.map_err(|_| format!("worker {worker} begins no transaction within {PATIENCE:?}"))
}

/// Transactions that workers had to abort so far, and processes that worked: both rise when a transaction ends that its worker did not
/// end.
pub(crate) fn disturbed(stage: &Stage) -> Option<(u64, u64)> {
    let counts = stage.pipeline.as_ref()?.ledger.counts();
    Some((counts.aborted.1, counts.lives))
}

/// The broker that coordinates the pipeline's group.
///
/// # Errors
/// Nobody knows, for long.
pub(crate) async fn group_coordinator(stage: &Stage) -> Result<usize, String> {
    found(stage, |address| async move {
        let mut groups = GroupsClient::connect(address).await.map_err(|error| error.to_string())?;
        let found = groups.find_coordinator(FindCoordinatorRequest { group: GROUP.to_owned() }).await;
        Ok(found.map_err(|status| status.to_string())?.into_inner().id)
    })
    .await
}

/// The broker that coordinates a worker's transactions.
///
/// # Errors
/// Nobody knows, for long.
pub(crate) async fn transaction_coordinator(stage: &Stage, worker: u16) -> Result<usize, String> {
    found(stage, |address| async move {
        let mut transactions = TransactionsClient::connect(address).await.map_err(|error| error.to_string())?;
        let request = FindTransactionCoordinatorRequest { transactional_id: transactional_id(worker) };
        let found = transactions.find_transaction_coordinator(request).await;
        Ok(found.map_err(|status| status.to_string())?.into_inner().id)
    })
    .await
}

/// Asks one broker after the other until one answers.
async fn found<F>(stage: &Stage, ask: impl Fn(String) -> F) -> Result<usize, String>
where
    F: Future<Output = Result<u32, String>>,
{
    let mut last = String::new();
    let asked = tokio::time::timeout(PATIENCE, async {
        let mut poll = tokio::time::interval(POLL);
        for broker in (0..stage.fleet.size()).cycle() {
            poll.tick().await;
            if !stage.fleet.works(broker) {
                continue;
            }
            match tokio::time::timeout(Duration::from_secs(2), ask(format!("http://{}", stage.fleet.grpc(broker))))
                .await
            {
                Ok(Ok(id)) => return id as usize,
                Ok(Err(error)) => last = error,
                Err(_) => last = format!("broker {broker} does not answer"),
            }
        }
        unreachable!("a cycle has no end")
    });
    asked.await.map_err(|_| format!("no coordinator is known within {PATIENCE:?}: {last}"))
}

/// What a run's transactions came to, beside what stands in the topics.
fn summary(ledger: &Ledger, halted: u64) -> Summary {
    let told = ledger.counts();
    Summary {
        committed: told.committed,
        by_sdk: told.by_sdk,
        aborted: told.aborted,
        fenced: told.fenced,
        lives: told.lives,
        standstill: ledger.standstill(halted),
        ..Summary::default()
    }
}

/// The topics of a run, with their partitions.
pub(crate) fn topics(stage: &Stage) -> BTreeMap<&'static str, u16> {
    let sink = stage.pipeline.is_some().then_some((SINK, SINK_PARTITIONS));
    [(TOPIC, crate::clients::PARTITIONS)].into_iter().chain(sink).collect()
}
