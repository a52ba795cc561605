//! A client of one cluster: bootstrap, metadata, unary calls with retries. Producers, consumers and admins share it.

use crate::backoff::Backoff;
use crate::connection::{Dialer, Tls, addresses};
use crate::description::LastKnown;
use crate::error::Error;
use crate::leader::Leader;
use crate::metadata::{Image, Known};
use millpond_log::{BrokerId, ErrorCode, TopicId};
use millpond_proto::v1::admin_client::AdminClient;
use millpond_proto::v1::log_client::LogClient;
use millpond_proto::{MESSAGE_BYTES_MAX, v1};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tonic::transport::Channel;
use tonic::{Response, Status};

/// How long one broker is waited for with a question that any of them answers at once; then the next is asked. A broker that is
/// stopped, or cut off, must not hold the client while others know better.
const ANSWER_PATIENCE: Duration = Duration::from_secs(3);

/// How long a broker that failed to answer is asked last.
const SILENCE: Duration = Duration::from_secs(10);

/// How a client behaves.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Where to ask first, `host:port` each; one that answers is enough. Kafka's `bootstrap.servers`.
    pub bootstrap: Vec<String>,
    /// Who this is, for the brokers' logs.
    pub client_id: String,
    /// How long a connection may take to open.
    pub connect_timeout: Duration,
    /// How long one request may take.
    pub request_timeout: Duration,
    /// How long a call may take with its retries. Kafka's `default.api.timeout.ms`.
    pub api_timeout: Duration,
    /// When what is known of a topic is asked for anew.
    pub metadata_age_max: Duration,
    /// Pauses between tries.
    pub retry_backoff: Backoff,
    /// TLS, where the brokers speak it.
    pub tls: Option<Tls>,
}

impl ClientConfig {
    /// The defaults, with a list of addresses, `host:port[,host:port…]`. A missing port is 7400.
    ///
    /// # Errors
    /// If the list is empty.
    pub fn new(bootstrap: &str) -> Result<ClientConfig, Error> {
        Ok(ClientConfig {
            bootstrap: addresses(bootstrap)?,
            client_id: concat!("millpond-rust/", env!("CARGO_PKG_VERSION")).to_owned(),
            connect_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(30),
            api_timeout: Duration::from_secs(60),
            metadata_age_max: Duration::from_secs(300),
            retry_backoff: Backoff::default(),
            tls: None,
        })
    }
}

/// A client of one cluster. Cheap to clone; clones share connections and metadata.
#[derive(Clone, Debug)]
pub struct Client {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    config: ClientConfig,
    dialer: Dialer,
    image: RwLock<Image>,
    /// Held while metadata is asked for, so that many who miss the same thing ask once.
    asking: tokio::sync::Mutex<()>,
    /// Channels for unary calls, by address.
    channels: Mutex<HashMap<String, Channel>>,
    /// When an address last failed to answer: others are asked first for a while.
    silent: Mutex<HashMap<String, Instant>>,
}

/// Whether a call that may have taken effect may be made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// Twice is as good as once.
    Safe,
    /// Only if it is known to have had no effect.
    IfNotDone,
}

impl Client {
    /// Connects with the default settings, to `host:port[,host:port…]`.
    ///
    /// # Errors
    /// As `with_config`.
    pub async fn connect(bootstrap: &str) -> Result<Client, Error> {
        Client::with_config(ClientConfig::new(bootstrap)?).await
    }

    /// Connects: returns once one of the addresses has answered. Each is tried once; one that says nothing for a while is waited for only
    /// when the others have failed.
    ///
    /// # Errors
    /// What was wrong with the addresses; a port that speaks Kafka is named.
    pub async fn with_config(config: ClientConfig) -> Result<Client, Error> {
        let dialer = Dialer {
            client_id: config.client_id.clone(),
            connect_timeout: config.connect_timeout,
            tls: config.tls.clone(),
        };
        let image = RwLock::new(Image::default());
        let (asking, channels, silent) = (tokio::sync::Mutex::new(()), Mutex::default(), Mutex::default());
        let client = Client { inner: Arc::new(Inner { config, dialer, image, asking, channels, silent }) };
        let patience = client.inner.config.request_timeout;
        let (mut failures, mut silent): (Vec<Error>, Vec<&String>) = (Vec::new(), Vec::new());
        for address in &client.inner.config.bootstrap {
            match timeout(patience.min(ANSWER_PATIENCE), client.learn_from(address, &[], false, patience)).await {
                Ok(Ok(_)) => return Ok(client),
                Ok(Err(error)) => failures.push(client.inner.dialer.explain(address, error).await),
                Err(_) => silent.push(address),
            }
            client.suspect(address);
        }
        for address in silent {
            match client.learn_from(address, &[], false, patience).await {
                Ok(_) => return Ok(client),
                Err(error) => failures.push(client.inner.dialer.explain(address, error).await),
            }
        }
        let Some(last) = failures.pop() else {
            return Err(Error::new(ErrorCode::InvalidRequest, "no bootstrap address: give HOST:PORT"));
        };
        let others: String = failures.iter().map(|error| format!("{error}; ")).collect();
        Err(Error { message: format!("{others}{last}"), ..last })
    }

    /// The settings.
    #[must_use]
    pub fn config(&self) -> &ClientConfig {
        &self.inner.config
    }

    /// How many partitions a topic has, from what is known, or by asking. `create`: it may be created on the way.
    pub(crate) async fn partition_count(&self, topic: &str, create: bool, deadline: Instant) -> Result<u32, Error> {
        let known = match self.topic(topic) {
            Some(known) => known,
            None => self.refresh(topic, create, Instant::now(), deadline).await?,
        };
        Ok(u32::try_from(known.topic.partitions.len()).expect("partitions are counted in 32 bits"))
    }

    /// Whether what is known of a topic should be asked for anew.
    pub(crate) fn is_old(&self, topic: &str) -> bool {
        self.topic(topic).is_some_and(|known| known.at.elapsed() >= self.inner.config.metadata_age_max)
    }

    /// How many brokers are known.
    pub(crate) fn broker_count(&self) -> usize {
        self.inner.image.read().unwrap_or_else(PoisonError::into_inner).addresses().len()
    }

    /// What is known of a topic.
    pub(crate) fn topic(&self, topic: &str) -> Option<Known> {
        self.inner.image.read().unwrap_or_else(PoisonError::into_inner).topic(topic).cloned()
    }

    /// The names of topics by their ids, from what is known or by asking. One that no broker knows is left out.
    pub(crate) async fn topic_names(
        &self,
        ids: &BTreeSet<TopicId>,
        deadline: Instant,
    ) -> Result<BTreeMap<TopicId, String>, Error> {
        let known = |client: &Client| client.inner.image.read().unwrap_or_else(PoisonError::into_inner).names(ids);
        let missing: Vec<TopicId> = ids.difference(&known(self).into_keys().collect()).copied().collect();
        if !missing.is_empty() {
            let ask = |address: String| self.learn_ids(address, &missing);
            self.until(deadline, Repeat::Safe, names_something_known, ask).await?;
        }
        Ok(known(self))
    }

    async fn learn_ids(&self, address: String, ids: &[TopicId]) -> Result<(), Error> {
        let request = v1::MetadataRequest {
            topics: ids.iter().map(|id| v1::TopicRef::id(*id)).collect(),
            allow_auto_create: false,
        };
        let ask = async { answer(log_client(self.unary_channel(&address)?).metadata(request).await) };
        let patience = self.inner.config.request_timeout.min(ANSWER_PATIENCE);
        let mut told = timeout(patience, ask).await.map_err(|_| Error::connection("no answer in time"))??;
        // What it does not know yet is asked for again when it matters.
        let described = |topic: &v1::TopicMetadata| match &topic.result {
            Some(v1::topic_metadata::Result::Topic(topic)) => Some(topic.name.clone()),
            _ => None,
        };
        told.topics.retain(|topic| described(topic).is_some());
        let names: Vec<String> = told.topics.iter().filter_map(described).collect();
        let mut image = self.inner.image.write().unwrap_or_else(PoisonError::into_inner);
        image.learn(&names, told, Instant::now()).map(|_| ())
    }

    /// The leader of a partition, from what is known.
    pub(crate) fn leader(&self, topic: &str, partition: u32) -> Option<Leader> {
        self.inner.image.read().unwrap_or_else(PoisonError::into_inner).leader(topic, partition)
    }

    /// Who can be read from, from what is known: the leader, or whoever serves the rest of a partition nobody may lead.
    pub(crate) fn reader(&self, topic: &str, partition: u32) -> Option<Leader> {
        self.inner.image.read().unwrap_or_else(PoisonError::into_inner).reader(topic, partition)
    }

    /// A broker that may serve what is in object storage of a partition.
    pub(crate) fn anyone(&self, topic: &str, partition: u32, rack: Option<&str>) -> Option<Leader> {
        self.inner.image.read().unwrap_or_else(PoisonError::into_inner).anyone(topic, partition, rack)
    }

    /// Takes a broker's word of who leads a partition. Returns whether it was news: then there is nothing to ask for.
    pub(crate) fn adopt(&self, topic: &str, partition: u32, error: &Error) -> bool {
        let Some(leader) = error.leader.as_deref() else { return false };
        self.inner.image.write().unwrap_or_else(PoisonError::into_inner).adopt(topic, partition, leader)
    }

    /// Where a broker is reached, from what is known.
    pub(crate) fn address(&self, broker: BrokerId) -> Option<String> {
        self.inner.image.read().unwrap_or_else(PoisonError::into_inner).address(broker)
    }

    /// Notes that a broker owes an answer: others are asked first for a while.
    pub(crate) fn suspect(&self, address: &str) {
        let mut silent = self.inner.silent.lock().unwrap_or_else(PoisonError::into_inner);
        silent.insert(address.to_owned(), Instant::now());
    }

    /// Why a partition has no leader, as far as is known.
    pub(crate) fn leaderless(&self, topic: &str, partition: u32) -> Error {
        self.inner.image.read().unwrap_or_else(PoisonError::into_inner).leaderless(topic, partition)
    }

    /// Asks for a topic unless an answer newer than `since` is there. Tries until `deadline`.
    ///
    /// A task of its own asks: all clones of this client wait for it, and whoever calls may stop looking at what it called.
    pub(crate) async fn refresh(
        &self,
        topic: &str,
        create: bool,
        since: Instant,
        deadline: Instant,
    ) -> Result<Known, Error> {
        let (client, topic) = (self.clone(), topic.to_owned());
        let mut asking = JoinSet::new();
        asking.spawn(async move { client.ask_for(&topic, create, since, deadline).await });
        match asking.join_next().await.expect("it was spawned above") {
            Ok(known) => known,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    async fn ask_for(&self, topic: &str, create: bool, since: Instant, deadline: Instant) -> Result<Known, Error> {
        let _asking = self.inner.asking.lock().await;
        if let Some(known) = self.topic(topic).filter(|known| known.at > since) {
            return Ok(known);
        }
        let names = [topic.to_owned()];
        // A creation takes its time; any other answer is at hand, or the broker is not well.
        let patience = if create {
            self.inner.config.request_timeout
        } else {
            self.inner.config.request_timeout.min(ANSWER_PATIENCE)
        };
        let ask = |address: String| {
            let names = &names;
            async move {
                match self.learn_from(&address, names, create, patience).await?.pop() {
                    Some((_, error)) => Err(error),
                    None => Ok(()),
                }
            }
        };
        self.until(deadline, Repeat::Safe, names_something_known, ask).await?;
        self.topic(topic).ok_or_else(|| Error::new(ErrorCode::UnknownTopicOrPartition, format!("no topic `{topic}`")))
    }

    /// Makes a unary call to any broker, with retries.
    pub(crate) async fn call<T, F>(&self, repeat: Repeat, call: impl Fn(Channel) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let deadline = Instant::now() + self.inner.config.api_timeout;
        self.until(deadline, repeat, names_something_known, |address| self.call_once(address, &call)).await
    }

    /// Asks any broker what each of them answers at once, with retries: one that is silent is waited for only when the others have failed.
    pub(crate) async fn ask<T, F>(&self, call: impl Fn(Channel) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let deadline = Instant::now() + self.inner.config.api_timeout;
        let (first_round, tries) = (self.addresses().len(), AtomicUsize::new(0));
        let ask = |address: String| {
            let whole = self.inner.config.request_timeout;
            let quick = tries.fetch_add(1, Ordering::Relaxed) < first_round;
            let patience = if quick { whole.min(ANSWER_PATIENCE) } else { whole };
            let asked = self.call_once(address.clone(), &call);
            async move {
                let late = |_| Err(named(&address, Error::connection("no answer in time")));
                timeout(patience, asked).await.unwrap_or_else(late)
            }
        };
        self.until(deadline, Repeat::Safe, names_something_known, ask).await
    }

    /// Asks all brokers how things are and, if none knows, how they were (`call` is told which); of the latter the one is believed that
    /// knew last. With retries if none answers at all.
    pub(crate) async fn ask_for_last_known<T, F>(
        &self,
        call: impl Fn(Channel, bool) -> F,
    ) -> Result<LastKnown<T>, Error>
    where
        F: Future<Output = Result<LastKnown<T>, Error>>,
    {
        let patience = self.inner.config.request_timeout.min(ANSWER_PATIENCE);
        for allow_stale in [false, true] {
            let mut newest: Option<LastKnown<T>> = None;
            for address in self.addresses() {
                let asked = self.call_once(address.clone(), |channel| call(channel, allow_stale));
                match timeout(patience, asked).await {
                    Ok(Ok(known)) if known.stale_for.is_none() => return Ok(known),
                    Ok(Ok(known)) if newest.as_ref().is_none_or(|newest| known.stale_for < newest.stale_for) => {
                        newest = Some(known);
                    }
                    Ok(Ok(_)) => {}
                    Ok(Err(error)) if !error.retriable || !names_something_known(&error) => return Err(error),
                    Ok(Err(error)) if !error.is_connection() => {}
                    Ok(Err(_)) | Err(_) => self.suspect(&address),
                }
            }
            if let Some(known) = newest {
                return Ok(known);
            }
        }
        self.ask(|channel| call(channel, true)).await
    }

    /// Makes a unary call to the leader of a partition, with retries and fresh metadata after each failure.
    pub(crate) async fn call_leader<T, F>(
        &self,
        topic: &str,
        partition: u32,
        call: impl Fn(Channel) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        self.call_at(topic, partition, || self.leader(topic, partition), call).await
    }

    /// The same for a question, which whoever serves reads can answer.
    pub(crate) async fn call_reader<T, F>(
        &self,
        topic: &str,
        partition: u32,
        call: impl Fn(Channel) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        self.call_at(topic, partition, || self.reader(topic, partition), call).await
    }

    async fn call_at<T, F>(
        &self,
        topic: &str,
        partition: u32,
        place: impl Fn() -> Option<Leader>,
        call: impl Fn(Channel) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let deadline = Instant::now() + self.inner.config.api_timeout;
        let mut failures = 0;
        loop {
            let begun = Instant::now();
            let count = self.partition_count(topic, false, deadline).await?;
            if partition >= count {
                let message =
                    format!("topic `{topic}` has partitions 0 to {}, not {partition}", count.saturating_sub(1));
                return Err(Error::new(ErrorCode::UnknownTopicOrPartition, message).given_up());
            }
            let error = match place() {
                Some(leader) => match self.call_once(leader.address, &call).await {
                    Ok(answer) => return Ok(answer),
                    Err(error) => error,
                },
                None => self.leaderless(topic, partition),
            };
            if self.adopt(topic, partition, &error) && Instant::now() < deadline {
                continue;
            }
            failures += 1;
            let Some(pause) = self.pause(&error, failures, deadline) else { return Err(error) };
            sleep(pause).await;
            if error.metadata_is_stale() {
                self.refresh(topic, false, begun, deadline).await?;
            }
        }
    }

    pub(crate) async fn call_once<T, F>(&self, address: String, call: impl Fn(Channel) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let channel = self.unary_channel(&address)?;
        match timeout(self.inner.config.request_timeout, call(channel)).await {
            Ok(answer) => answer.map_err(|error| named(&address, error)),
            Err(_) => Err(Error::connection(format!("no answer from {address} in time"))),
        }
    }

    /// Tries `call` on one broker after the other, with a pause after each round, until it succeeds, an error is final,
    /// or `deadline` passes.
    async fn until<T, F>(
        &self,
        deadline: Instant,
        repeat: Repeat,
        worth: impl Fn(&Error) -> bool,
        call: impl Fn(String) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let mut failures = 0;
        loop {
            let mut newest = None;
            for address in self.addresses() {
                let error = match timeout_at(deadline, call(address.clone())).await {
                    Ok(Ok(answer)) => return Ok(answer),
                    Ok(Err(error)) => error,
                    Err(_) => return Err(newest.unwrap_or_else(|| Error::connection("no answer in time"))),
                };
                if error.is_connection() {
                    self.suspect(&address);
                }
                let may_repeat = repeat == Repeat::Safe || !error.maybe_done;
                if !error.retriable || !may_repeat || !worth(&error) {
                    return Err(error);
                }
                newest = Some(error);
            }
            let error = newest.unwrap_or_else(|| Error::connection("no broker is known"));
            failures += 1;
            let Some(pause) = self.pause(&error, failures, deadline) else { return Err(error) };
            sleep(pause).await;
        }
    }

    /// How long to pause after an error; `None` if it is final or the deadline would pass.
    pub(crate) fn pause(&self, error: &Error, failures: u32, deadline: Instant) -> Option<Duration> {
        let backoff = self.inner.config.retry_backoff.pause(failures, rand::random());
        let pause = error.retry_after.map_or(backoff, |asked| asked.max(backoff));
        (error.retriable && Instant::now() + pause < deadline).then_some(pause)
    }

    /// Every address worth asking: the brokers known, then the bootstrap addresses; those that owe answers last.
    fn addresses(&self) -> Vec<String> {
        let mut addresses = self.inner.image.read().unwrap_or_else(PoisonError::into_inner).addresses();
        let unknown: Vec<&String> =
            self.inner.config.bootstrap.iter().filter(|address| !addresses.contains(address)).collect();
        let unknown: Vec<String> = unknown.into_iter().cloned().collect();
        addresses.extend(unknown);
        let silent = self.inner.silent.lock().unwrap_or_else(PoisonError::into_inner);
        addresses.sort_by_key(|address| silent.get(address).is_some_and(|since| since.elapsed() < SILENCE));
        addresses
    }

    async fn learn_from(
        &self,
        address: &str,
        names: &[String],
        create: bool,
        patience: Duration,
    ) -> Result<Vec<(String, Error)>, Error> {
        let topics = names.iter().map(|name| v1::TopicRef::name(name.clone())).collect();
        let request = v1::MetadataRequest { topics, allow_auto_create: create };
        let ask = |channel: Channel| {
            let request = request.clone();
            async move { answer(log_client(channel).metadata(request).await) }
        };
        let told = timeout(patience, ask(self.unary_channel(address)?)).await;
        let told = told.map_err(|_| Error::connection("no answer in time"))??;
        let mut image = self.inner.image.write().unwrap_or_else(PoisonError::into_inner);
        image.learn(names, told, Instant::now())
    }

    pub(crate) fn unary_channel(&self, address: &str) -> Result<Channel, Error> {
        let mut channels = self.inner.channels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(channel) = channels.get(address) {
            return Ok(channel.clone());
        }
        let channel = self.inner.dialer.channel(address)?;
        channels.insert(address.to_owned(), channel.clone());
        Ok(channel)
    }

    /// A channel of its own to a broker, for streams.
    pub(crate) fn stream_channel(&self, address: &str) -> Result<Channel, Error> {
        self.inner.dialer.channel(address)
    }
}

/// A topic that does not exist is the answer, although Kafka calls the error one that may pass.
fn names_something_known(error: &Error) -> bool {
    error.code != Some(ErrorCode::UnknownTopicOrPartition)
}

fn named(address: &str, error: Error) -> Error {
    if error.is_connection() { error.at(format_args!("cannot reach {address}")) } else { error }
}

/// What a unary call came to.
pub(crate) fn answer<T>(answer: Result<Response<T>, Status>) -> Result<T, Error> {
    answer.map(Response::into_inner).map_err(Error::from)
}

/// The `Log` service on a channel, with room for the largest batch.
pub(crate) fn log_client(channel: Channel) -> LogClient<Channel> {
    LogClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX).max_encoding_message_size(MESSAGE_BYTES_MAX)
}

/// The `Admin` service on a channel.
pub(crate) fn admin_client(channel: Channel) -> AdminClient<Channel> {
    AdminClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    /// A client that knows nothing yet.
    fn unconnected(bootstrap: &str) -> Client {
        let config = ClientConfig::new(bootstrap).expect("an address");
        let dialer = Dialer { client_id: "test".to_owned(), connect_timeout: config.connect_timeout, tls: None };
        let (image, asking) = (RwLock::new(Image::default()), tokio::sync::Mutex::new(()));
        let (channels, silent) = (Mutex::default(), Mutex::default());
        Client { inner: Arc::new(Inner { config, dialer, image, asking, channels, silent }) }
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_goes_on_to_the_next_broker_while_one_is_silent() {
        let client = unconnected("127.0.0.1:1,127.0.0.1:2,127.0.0.1:3");
        let (begun, asked) = (Instant::now(), AtomicUsize::new(0));
        let call = |_| {
            let turn = asked.fetch_add(1, Ordering::Relaxed);
            async move { if turn == 0 { std::future::pending().await } else { Ok(turn) } }
        };
        assert_eq!(client.ask(call).await.expect("the second answers"), 1);
        assert!(begun.elapsed() < client.config().request_timeout);
        assert_eq!(client.addresses(), ["127.0.0.1:2", "127.0.0.1:3", "127.0.0.1:1"], "it is asked last from now on");
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_that_all_take_long_to_answer_is_answered() {
        let client = unconnected("127.0.0.1:1,127.0.0.1:2");
        let call = |_| async {
            sleep(ANSWER_PATIENCE * 2).await;
            Ok(())
        };
        client.ask(call).await.expect("it is waited for longer in the second round");
    }

    /// For how many seconds a broker has not known how things are, or that it does not tell.
    type Since = Result<Option<u64>, ErrorCode>;

    /// What is believed of brokers that are asked one after the other: which one, and for how long it has not known.
    async fn last_known(answers: [fn(bool) -> Since; 3]) -> Result<(usize, Option<Duration>), Error> {
        let client = unconnected("127.0.0.1:1,127.0.0.1:2,127.0.0.1:3");
        let asked = AtomicUsize::new(0);
        let call = |_, allow_stale| {
            let turn = asked.fetch_add(1, Ordering::Relaxed) % 3;
            let answer = answers[turn](allow_stale);
            async move {
                let stale_for = answer.map_err(|code| Error::new(code, "refused"))?.map(Duration::from_secs);
                Ok(LastKnown { value: turn, stale_for })
            }
        };
        client.ask_for_last_known(call).await.map(|known| (known.value, known.stale_for))
    }

    const STALE: ErrorCode = ErrorCode::LeaderNotAvailable;

    #[tokio::test(start_paused = true)]
    async fn who_knows_how_things_are_is_believed_and_else_who_knew_last() {
        fn stale(seconds: u64, allowed: bool) -> Since {
            if allowed { Ok(Some(seconds)) } else { Err(STALE) }
        }
        let known = last_known([|allowed| stale(9, allowed), |allowed| stale(7, allowed), |_| Ok(None)]).await;
        assert_eq!(known.expect("one knows"), (2, None));
        let known =
            last_known([|allowed| stale(9, allowed), |allowed| stale(7, allowed), |allowed| stale(8, allowed)]).await;
        assert_eq!(known.expect("all knew"), (1, Some(Duration::from_secs(7))));
        // That it is gone is known as well.
        let gone = |_| Err(ErrorCode::TopicAuthorizationFailed);
        let known = last_known([|allowed| stale(9, allowed), gone, |allowed| stale(8, allowed)]).await;
        assert_eq!(known.expect_err("it is told").code, Some(ErrorCode::TopicAuthorizationFailed));
    }

    #[tokio::test]
    async fn a_call_that_nobody_looks_at_any_more_keeps_no_other_from_asking() {
        // It takes connections, and never says a word.
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let client = unconnected(&listener.local_addr().expect("it is bound").to_string());
        let now = Instant::now();
        let mut first = Box::pin(client.refresh("first", false, now, now + Duration::from_millis(100)));
        assert!((&mut first).now_or_never().is_none());
        let _silent = listener.accept().await.expect("it is asked");
        // From here on nobody polls the first call, which its task does not keep from ending.
        let second = client.refresh("second", false, now, now + Duration::from_millis(200));
        let second = timeout(Duration::from_secs(20), second).await.expect("its turn comes");
        assert!(second.expect_err("nobody answers").is_connection());
        assert!(first.await.is_err());
    }
}
