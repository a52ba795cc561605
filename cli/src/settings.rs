//! Settings of a broker: read from flags, variables and a file, in that order of precedence, and checked before anything starts.
//! Opens nothing but the file, and those that say what brokers prove to each other.

mod listeners;

use crate::failure::{Doing, Failure};
use crate::metadata::{EtcdFiles, Login, Metadata};
use crate::secret::{self, Written};
use crate::telemetry::{TelemetrySettings, holds_credentials};
use crate::units::{ByteCount, Span};
use listeners::NamedListener;
use millpond_broker::config::{DoorTls, GroupLimits, InternalTls, PARTITIONS_MAX};
use millpond_broker::secret::Secret;
use serde::Deserialize;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

/// What the operator said; all of it may be left out. The file's keys are the flags' names.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Settings {
    /// Number of the broker in the cluster, or `auto`: allocated once and kept in the data directory [default: auto]
    #[arg(long, env = "MILLPOND_ID", value_name = "N|auto")]
    #[serde(deserialize_with = "id_from_file")]
    pub(crate) id: Option<String>,
    /// Where the broker stands; replicas are spread over racks
    #[arg(long, env = "MILLPOND_RACK", value_name = "NAME")]
    pub(crate) rack: Option<String>,
    /// Name of the cluster [default: millpond]
    #[arg(long, env = "MILLPOND_CLUSTER", value_name = "NAME")]
    pub(crate) cluster: Option<String>,
    /// Folder of the WAL and the disk cache, owned by this broker alone
    #[arg(long, env = "MILLPOND_DATA_DIR", value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Where the cluster's facts are kept: etcd://HOST:PORT,HOST:PORT/PREFIX or embedded:DIR [default prefix:
    /// /millpond/CLUSTER]
    #[arg(long, env = "MILLPOND_METADATA", value_name = "URL")]
    pub(crate) metadata: Option<String>,
    /// Certificate of the CA that signed etcd's own; turns TLS on
    #[arg(long, env = "MILLPOND_ETCD_CA", value_name = "FILE.pem")]
    pub(crate) etcd_ca: Option<PathBuf>,
    /// Certificate to show to etcd
    #[arg(long, env = "MILLPOND_ETCD_CERT", value_name = "FILE.pem")]
    pub(crate) etcd_cert: Option<PathBuf>,
    /// Key of that certificate
    #[arg(long, env = "MILLPOND_ETCD_KEY", value_name = "FILE.pem")]
    pub(crate) etcd_key: Option<PathBuf>,
    /// User of etcd, with its password or without
    #[arg(long, env = "MILLPOND_ETCD_USER", hide_env_values = true, value_name = "NAME[:PASSWORD]")]
    pub(crate) etcd_user: Option<Login>,
    /// Password of that user; others see a command line, and not a file
    #[arg(long, env = "MILLPOND_ETCD_PASSWORD_FILE", value_name = "FILE")]
    pub(crate) etcd_password_file: Option<PathBuf>,
    /// Where segments are kept: s3://bucket/prefix, gs://, az://, file:///dir or memory://
    #[arg(long, env = "MILLPOND_OBJECT_STORE", value_name = "URL")]
    pub(crate) object_store: Option<String>,
    /// Address of the gRPC door [default: 127.0.0.1:7400]
    #[arg(long, env = "MILLPOND_GRPC_LISTEN", value_name = "IP:PORT")]
    pub(crate) grpc_listen: Option<SocketAddr>,
    /// What clients are told to connect to [default: the address it listens on]
    #[arg(long, env = "MILLPOND_GRPC_ADVERTISE", value_name = "HOST:PORT")]
    pub(crate) grpc_advertise: Option<String>,
    /// Address of the Kafka door [default: 127.0.0.1:9092]
    #[arg(long, env = "MILLPOND_KAFKA_LISTEN", value_name = "IP:PORT")]
    pub(crate) kafka_listen: Option<SocketAddr>,
    /// What Kafka clients are told to connect to [default: the address it listens on]
    #[arg(long, env = "MILLPOND_KAFKA_ADVERTISE", value_name = "HOST:PORT")]
    pub(crate) kafka_advertise: Option<String>,
    /// A listener of the Kafka door with a name, in place of --kafka-listen or beside it: clients that come in by it are told what
    /// each broker advertises under that name. May be given again; `tls` has it speak TLS. In the variable, spaces part them
    #[arg(
        long,
        env = "MILLPOND_KAFKA_LISTENER",
        value_delimiter = ' ',
        value_name = "NAME=IP:PORT[,advertise=HOST:PORT][,tls]"
    )]
    pub(crate) kafka_listener: Vec<NamedListener>,
    /// Address for health checks and metrics [default: 127.0.0.1:7480]
    #[arg(long, env = "MILLPOND_HTTP_LISTEN", value_name = "IP:PORT")]
    pub(crate) http_listen: Option<SocketAddr>,
    /// Certificate of the doors, for the hosts they advertise: the gRPC door and --kafka-listen speak TLS once there is one. It is
    /// read again when it changes
    #[arg(long, env = "MILLPOND_TLS_CERT", value_name = "FILE.pem")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Key of that certificate
    #[arg(long, env = "MILLPOND_TLS_KEY", value_name = "FILE.pem")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Let in only clients that show a certificate of this authority, at the gRPC and the Kafka door
    #[arg(long, env = "MILLPOND_TLS_CLIENT_CA", value_name = "FILE.pem")]
    pub(crate) tls_client_ca: Option<PathBuf>,
    /// Speak TLS at the HTTP door too, which never asks for a client's certificate
    #[arg(long, env = "MILLPOND_HTTP_TLS", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) http_tls: Option<bool>,
    /// File with the secret that all brokers of the cluster share, 16 bytes or more; without one there is no replication.
    /// MILLPOND_CLUSTER_SECRET may hold the secret itself instead
    #[arg(long, env = "MILLPOND_CLUSTER_SECRET_FILE", value_name = "FILE")]
    pub(crate) cluster_secret_file: Option<PathBuf>,
    /// The secret itself: for the variable, since others see a command line
    #[arg(long, env = "MILLPOND_CLUSTER_SECRET", hide = true, hide_env_values = true)]
    pub(crate) cluster_secret: Option<Written>,
    /// Address of the internal door, for the other brokers [default: port 7401 beside the gRPC door; any port on loopback]
    #[arg(long, env = "MILLPOND_INTERNAL_LISTEN", value_name = "IP:PORT")]
    pub(crate) internal_listen: Option<SocketAddr>,
    /// What the other brokers are told to connect to [default: the host of --grpc-advertise, or the address it listens on]
    #[arg(long, env = "MILLPOND_INTERNAL_ADVERTISE", value_name = "HOST:PORT")]
    pub(crate) internal_advertise: Option<String>,
    /// Certificate of the authority that signed those of all brokers; encrypts what brokers say to each other
    #[arg(long, env = "MILLPOND_INTERNAL_TLS_CA", value_name = "FILE.pem")]
    pub(crate) internal_tls_ca: Option<PathBuf>,
    /// Certificate of this broker, for the host that the others connect to
    #[arg(long, env = "MILLPOND_INTERNAL_TLS_CERT", value_name = "FILE.pem")]
    pub(crate) internal_tls_cert: Option<PathBuf>,
    /// Key of that certificate
    #[arg(long, env = "MILLPOND_INTERNAL_TLS_KEY", value_name = "FILE.pem")]
    pub(crate) internal_tls_key: Option<PathBuf>,
    /// Memory for pages read from the object store [default: the broker's]
    #[arg(long, env = "MILLPOND_CACHE_MEMORY", value_name = "SIZE")]
    pub(crate) cache_memory: Option<ByteCount>,
    /// Disk for pages read from the object store [default: the broker's]
    #[arg(long, env = "MILLPOND_CACHE_DISK", value_name = "SIZE")]
    pub(crate) cache_disk: Option<ByteCount>,
    /// Disk for the WAL [default: the broker's]
    #[arg(long, env = "MILLPOND_WAL_BYTES", value_name = "SIZE")]
    pub(crate) wal_bytes: Option<ByteCount>,
    /// How long a member of a consumer group may be silent until others get its partitions; Kafka's
    /// group.consumer.session.timeout.ms [default: 45s]
    #[arg(long, env = "MILLPOND_GROUP_SESSION_TIMEOUT", value_name = "TIME")]
    pub(crate) group_session_timeout: Option<Span>,
    /// How often it is to be heard; Kafka's group.consumer.heartbeat.interval.ms [default: 3s]
    #[arg(long, env = "MILLPOND_GROUP_HEARTBEAT_INTERVAL", value_name = "TIME")]
    pub(crate) group_heartbeat_interval: Option<Span>,
    /// Shortest session timeout that may be set on a consumer group; Kafka's group.consumer.min.session.timeout.ms [default: 45s, or
    /// --group-session-timeout if that is less]
    #[arg(long, env = "MILLPOND_GROUP_CONSUMER_MIN_SESSION_TIMEOUT", value_name = "TIME")]
    pub(crate) group_consumer_min_session_timeout: Option<Span>,
    /// Longest that may be set; Kafka's group.consumer.max.session.timeout.ms [default: 60s, or --group-session-timeout if that is more]
    #[arg(long, env = "MILLPOND_GROUP_CONSUMER_MAX_SESSION_TIMEOUT", value_name = "TIME")]
    pub(crate) group_consumer_max_session_timeout: Option<Span>,
    /// Shortest heartbeat interval that may be set on a consumer group; Kafka's group.consumer.min.heartbeat.interval.ms [default: 3s, or
    /// --group-heartbeat-interval if that is less]
    #[arg(long, env = "MILLPOND_GROUP_CONSUMER_MIN_HEARTBEAT_INTERVAL", value_name = "TIME")]
    pub(crate) group_consumer_min_heartbeat_interval: Option<Span>,
    /// Longest that may be set; Kafka's group.consumer.max.heartbeat.interval.ms [default: 15s, or --group-heartbeat-interval if that is
    /// more]
    #[arg(long, env = "MILLPOND_GROUP_CONSUMER_MAX_HEARTBEAT_INTERVAL", value_name = "TIME")]
    pub(crate) group_consumer_max_heartbeat_interval: Option<Span>,
    /// Shortest session timeout that members of classic groups may ask for; Kafka's group.min.session.timeout.ms [default: 6s]
    #[arg(long, env = "MILLPOND_GROUP_MIN_SESSION_TIMEOUT", value_name = "TIME")]
    pub(crate) group_min_session_timeout: Option<Span>,
    /// Longest session timeout that they may ask for; Kafka's group.max.session.timeout.ms [default: 30m]
    #[arg(long, env = "MILLPOND_GROUP_MAX_SESSION_TIMEOUT", value_name = "TIME")]
    pub(crate) group_max_session_timeout: Option<Span>,
    /// How long the first rebalance of a classic group waits for more members; Kafka's group.initial.rebalance.delay.ms [default: 3s]
    #[arg(long, env = "MILLPOND_GROUP_INITIAL_REBALANCE_DELAY", value_name = "TIME")]
    pub(crate) group_initial_rebalance_delay: Option<Span>,
    /// Partitions of a topic that is created without a number; Kafka's num.partitions [default: 1]
    #[arg(long, env = "MILLPOND_NUM_PARTITIONS", value_name = "N")]
    pub(crate) num_partitions: Option<u32>,
    /// Create a topic when somebody writes to it or asks for it; Kafka's auto.create.topics.enable [default: false]
    #[arg(long, env = "MILLPOND_AUTO_CREATE_TOPICS", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) auto_create_topics: Option<bool>,
    /// Listen without TLS and passwords on an address that others can reach
    #[arg(long, env = "MILLPOND_INSECURE", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) insecure: Option<bool>,
}

/// Keys of a file whose values are shown to nobody.
const SECRET_KEYS: [&str; 2] = ["cluster-secret", "etcd-user"];

/// Where a file is no TOML, and why. The line itself may hold a secret, so it is not repeated.
fn mistake(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().map_or(0, |begun| begun.chars().count()) + 1;
    format!("no TOML at line {line}, column {column}: {}", error.message())
}

/// A number or a text.
fn id_from_file<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Number(u32),
        Text(String),
    }
    Ok(Some(match Written::deserialize(deserializer)? {
        Written::Number(number) => number.to_string(),
        Written::Text(text) => text,
    }))
}

/// Settings with nothing left open, except sizes, whose defaults are the broker's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Resolved {
    /// `None` is `auto`.
    pub(crate) id: Option<u32>,
    pub(crate) rack: Option<String>,
    pub(crate) cluster: String,
    pub(crate) data_dir: PathBuf,
    pub(crate) metadata: Metadata,
    pub(crate) object_store: String,
    pub(crate) grpc: Door,
    /// Listeners of the Kafka door, with their names.
    pub(crate) kafka: Vec<(String, Door)>,
    pub(crate) http: Door,
    /// What the doors show that speak TLS.
    pub(crate) tls: Option<DoorTls>,
    /// Where the other brokers come in, and what they have to know.
    pub(crate) internal: Option<Internal>,
    pub(crate) cache_memory: Option<ByteCount>,
    pub(crate) cache_disk: Option<ByteCount>,
    pub(crate) wal_bytes: Option<ByteCount>,
    pub(crate) groups: GroupLimits,
    pub(crate) num_partitions: Option<u32>,
    pub(crate) auto_create_topics: bool,
}

/// The internal door, and what the other brokers have to know and to show there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Internal {
    pub(crate) door: Door,
    pub(crate) secret: Secret,
    pub(crate) tls: Option<InternalTls>,
}

/// Where a door listens, and what its clients are told; `None` is the address it listens on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Door {
    pub(crate) listen: SocketAddr,
    pub(crate) advertise: Option<String>,
    pub(crate) tls: bool,
}

impl Settings {
    /// Reads a TOML file. `_` in a key is as good as `-`.
    pub(crate) fn read(path: &Path) -> Result<(Settings, TelemetrySettings), Failure> {
        let text = std::fs::read_to_string(path).doing(format!("cannot read the settings in `{}`", path.display()))?;
        Settings::parse(&text).map_err(|error| Failure::usage(format!("`{}`: {error}", path.display())))
    }

    fn parse(text: &str) -> Result<(Settings, TelemetrySettings), String> {
        let table: toml::Table = toml::from_str(text).map_err(|error| mistake(text, &error))?;
        let (mut keys, mut telemetry) = (toml::Table::new(), toml::Table::new());
        for (key, value) in table {
            let name = key.replace('_', "-");
            let of_telemetry = TelemetrySettings::KEYS.contains(&name.as_str());
            // What follows repeats a value of another type.
            if SECRET_KEYS.contains(&name.as_str()) && !value.is_str() {
                return Err(format!("`{key}` is a text, and goes in quotes"));
            }
            let table = if of_telemetry { &mut telemetry } else { &mut keys };
            if table.insert(name, value).is_some() {
                return Err(format!("`{key}` is set twice: `_` in a key is as good as `-`"));
            }
        }
        let (settings, telemetry) = (keys.try_into(), telemetry.try_into());
        Ok((
            settings.map_err(|error: toml::de::Error| error.to_string())?,
            telemetry.map_err(|error: toml::de::Error| error.to_string())?,
        ))
    }

    /// What `self` says, and where it says nothing, `other`.
    pub(crate) fn or(self, other: Settings) -> Settings {
        Settings {
            id: self.id.or(other.id),
            rack: self.rack.or(other.rack),
            cluster: self.cluster.or(other.cluster),
            data_dir: self.data_dir.or(other.data_dir),
            metadata: self.metadata.or(other.metadata),
            etcd_ca: self.etcd_ca.or(other.etcd_ca),
            etcd_cert: self.etcd_cert.or(other.etcd_cert),
            etcd_key: self.etcd_key.or(other.etcd_key),
            etcd_user: self.etcd_user.or(other.etcd_user),
            etcd_password_file: self.etcd_password_file.or(other.etcd_password_file),
            object_store: self.object_store.or(other.object_store),
            grpc_listen: self.grpc_listen.or(other.grpc_listen),
            grpc_advertise: self.grpc_advertise.or(other.grpc_advertise),
            kafka_listen: self.kafka_listen.or(other.kafka_listen),
            kafka_advertise: self.kafka_advertise.or(other.kafka_advertise),
            kafka_listener: if self.kafka_listener.is_empty() { other.kafka_listener } else { self.kafka_listener },
            http_listen: self.http_listen.or(other.http_listen),
            tls_cert: self.tls_cert.or(other.tls_cert),
            tls_key: self.tls_key.or(other.tls_key),
            tls_client_ca: self.tls_client_ca.or(other.tls_client_ca),
            http_tls: self.http_tls.or(other.http_tls),
            cluster_secret_file: self.cluster_secret_file.or(other.cluster_secret_file),
            cluster_secret: self.cluster_secret.or(other.cluster_secret),
            internal_listen: self.internal_listen.or(other.internal_listen),
            internal_advertise: self.internal_advertise.or(other.internal_advertise),
            internal_tls_ca: self.internal_tls_ca.or(other.internal_tls_ca),
            internal_tls_cert: self.internal_tls_cert.or(other.internal_tls_cert),
            internal_tls_key: self.internal_tls_key.or(other.internal_tls_key),
            cache_memory: self.cache_memory.or(other.cache_memory),
            cache_disk: self.cache_disk.or(other.cache_disk),
            wal_bytes: self.wal_bytes.or(other.wal_bytes),
            group_session_timeout: self.group_session_timeout.or(other.group_session_timeout),
            group_heartbeat_interval: self.group_heartbeat_interval.or(other.group_heartbeat_interval),
            group_consumer_min_session_timeout: self
                .group_consumer_min_session_timeout
                .or(other.group_consumer_min_session_timeout),
            group_consumer_max_session_timeout: self
                .group_consumer_max_session_timeout
                .or(other.group_consumer_max_session_timeout),
            group_consumer_min_heartbeat_interval: self
                .group_consumer_min_heartbeat_interval
                .or(other.group_consumer_min_heartbeat_interval),
            group_consumer_max_heartbeat_interval: self
                .group_consumer_max_heartbeat_interval
                .or(other.group_consumer_max_heartbeat_interval),
            group_min_session_timeout: self.group_min_session_timeout.or(other.group_min_session_timeout),
            group_max_session_timeout: self.group_max_session_timeout.or(other.group_max_session_timeout),
            group_initial_rebalance_delay: self.group_initial_rebalance_delay.or(other.group_initial_rebalance_delay),
            num_partitions: self.num_partitions.or(other.num_partitions),
            auto_create_topics: self.auto_create_topics.or(other.auto_create_topics),
            insecure: self.insecure.or(other.insecure),
        }
    }

    /// Fills in the defaults and refuses what cannot work.
    pub(crate) fn resolve(self) -> Result<Resolved, Failure> {
        let insecure = self.insecure.unwrap_or(false);
        let tls = listeners::certificates(self.tls_cert, self.tls_key, self.tls_client_ca)?;
        let safe = Safety { tls: tls.is_some(), insecure };
        let grpc = door("grpc", self.grpc_listen, GRPC_PORT, self.grpc_advertise, safe)?;
        let kafka = listeners::kafka(self.kafka_listen, self.kafka_advertise, self.kafka_listener, safe)?;
        let http = listeners::http(self.http_listen, self.http_tls, safe)?;
        let secret = secret::read(self.cluster_secret_file.as_deref(), self.cluster_secret.as_ref())?;
        let files = [self.internal_tls_ca, self.internal_tls_cert, self.internal_tls_key];
        let internal_tls = secret::read_tls(files.each_ref().map(Option::as_deref))?;
        let internal = internal(secret, internal_tls, &grpc, self.internal_listen, self.internal_advertise)?;
        let cluster = self.cluster.unwrap_or_else(|| "millpond".to_owned());
        let files = EtcdFiles {
            ca: self.etcd_ca,
            cert: self.etcd_cert,
            key: self.etcd_key,
            user: self.etcd_user,
            password_file: self.etcd_password_file,
        };
        let spans = GroupSpans {
            session: self.group_session_timeout,
            heartbeat: self.group_heartbeat_interval,
            session_bounds: (self.group_consumer_min_session_timeout, self.group_consumer_max_session_timeout),
            heartbeat_bounds: (self.group_consumer_min_heartbeat_interval, self.group_consumer_max_heartbeat_interval),
            min_session: self.group_min_session_timeout,
            max_session: self.group_max_session_timeout,
            initial_delay: self.group_initial_rebalance_delay,
        };
        let metadata = self.metadata.ok_or_else(|| missing("metadata", "etcd://HOST:PORT or embedded:DIR"))?;
        Ok(Resolved {
            id: self.id.as_deref().map_or(Ok(None), id)?,
            rack: self.rack,
            data_dir: self.data_dir.ok_or_else(|| missing("data-dir", "the folder of its WAL"))?,
            metadata: Metadata::parse(&metadata, &cluster, files)?,
            cluster,
            object_store: object_store(
                self.object_store.ok_or_else(|| missing("object-store", "for example s3://bucket/prefix"))?,
            )?,
            grpc,
            kafka,
            http,
            tls,
            internal,
            cache_memory: self.cache_memory,
            cache_disk: self.cache_disk,
            wal_bytes: self.wal_bytes,
            groups: groups(spans)?,
            num_partitions: self.num_partitions.map(num_partitions).transpose()?,
            // Section 8 of the defaults: topics come into being by themselves in `dev` only.
            auto_create_topics: self.auto_create_topics.unwrap_or(false),
        })
    }
}

/// Port of the gRPC door unless told otherwise.
pub(crate) const GRPC_PORT: u16 = 7400;
/// Port of the Kafka door unless told otherwise: Kafka's own.
pub(crate) const KAFKA_PORT: u16 = 9092;
/// Port of the HTTP door unless told otherwise.
pub(crate) const HTTP_PORT: u16 = 7480;

/// Port of the internal door where others reach the gRPC door.
pub(crate) const INTERNAL_PORT: u16 = 7401;

/// An address that only this machine reaches.
pub(crate) fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// What was said of the times of groups.
struct GroupSpans {
    session: Option<Span>,
    heartbeat: Option<Span>,
    session_bounds: (Option<Span>, Option<Span>),
    heartbeat_bounds: (Option<Span>, Option<Span>),
    min_session: Option<Span>,
    max_session: Option<Span>,
    initial_delay: Option<Span>,
}

/// How long members of groups may be silent, and how often they are to be heard: three times a session at least. In classic groups
/// each member says the first itself, within bounds.
fn groups(spans: GroupSpans) -> Result<GroupLimits, Failure> {
    let defaults = GroupLimits::default();
    // Kafka's clients know these times as 31 bits.
    let ms = |span: Option<Span>, default: u32, wrong: &'static str| match span {
        None => Ok(default),
        Some(span) => i32::try_from(span.0.as_millis()).map(i32::cast_unsigned).map_err(|_| Failure::usage(wrong)),
    };
    let wrong = "--group-session-timeout is at least three times --group-heartbeat-interval, which is at least 100ms";
    let session_timeout_ms = ms(spans.session, defaults.session_timeout_ms, wrong)?;
    let heartbeat_interval_ms = ms(spans.heartbeat, defaults.heartbeat_interval_ms, wrong)?;
    if heartbeat_interval_ms < 100 || session_timeout_ms / 3 < heartbeat_interval_ms {
        return Err(Failure::usage(wrong));
    }
    // What holds without a word of the group is within, so that a group may always say the same.
    type Bounds = (Option<Span>, Option<Span>);
    let bounds = |own: u32, (least, most): Bounds, default: (u32, u32), wrong| -> Result<(u32, u32), Failure> {
        let bounds = (ms(least, default.0.min(own), wrong)?, ms(most, default.1.max(own), wrong)?);
        if bounds.0 == 0 || !(bounds.0..=bounds.1).contains(&own) { Err(Failure::usage(wrong)) } else { Ok(bounds) }
    };
    let wrong = "--group-session-timeout lies between --group-consumer-min-session-timeout, which is at least 1ms, and \
        --group-consumer-max-session-timeout, which is at most 24d";
    let session_timeout_bounds_ms =
        bounds(session_timeout_ms, spans.session_bounds, defaults.session_timeout_bounds_ms, wrong)?;
    let wrong = "--group-heartbeat-interval lies between --group-consumer-min-heartbeat-interval, which is at least 1ms, and \
        --group-consumer-max-heartbeat-interval, which is at most 24d";
    let heartbeat_interval_bounds_ms =
        bounds(heartbeat_interval_ms, spans.heartbeat_bounds, defaults.heartbeat_interval_bounds_ms, wrong)?;
    let wrong =
        "--group-min-session-timeout is at least 1ms, and at most --group-max-session-timeout, which is at most 24d";
    let (least_ms, most_ms) = defaults.classic_session_timeout_ms;
    let classic_session_timeout_ms = (ms(spans.min_session, least_ms, wrong)?, ms(spans.max_session, most_ms, wrong)?);
    if classic_session_timeout_ms.0 == 0 || classic_session_timeout_ms.0 > classic_session_timeout_ms.1 {
        return Err(Failure::usage(wrong));
    }
    let wrong = "--group-initial-rebalance-delay is at most 24d";
    let initial_rebalance_delay_ms = ms(spans.initial_delay, defaults.initial_rebalance_delay_ms, wrong)?;
    Ok(GroupLimits {
        session_timeout_ms,
        heartbeat_interval_ms,
        session_timeout_bounds_ms,
        heartbeat_interval_bounds_ms,
        classic_session_timeout_ms,
        initial_rebalance_delay_ms,
        ..defaults
    })
}

/// The number of `--num-partitions`, if topics may have so many.
pub(crate) fn num_partitions(number: u32) -> Result<u32, Failure> {
    match number {
        1..=PARTITIONS_MAX => Ok(number),
        _ => Err(Failure::usage(format!("--num-partitions is 1 to {PARTITIONS_MAX}, not {number}"))),
    }
}

fn missing(flag: &str, what: &str) -> Failure {
    let variable = flag.replace('-', "_").to_uppercase();
    Failure::usage(format!("a broker needs --{flag} ({what}), MILLPOND_{variable}, or `{flag}` in its file"))
}

fn id(text: &str) -> Result<Option<u32>, Failure> {
    match text {
        "auto" => Ok(None),
        // Kafka's clients know node ids as 31 bits.
        _ => text.parse().ok().filter(|id| i32::try_from(*id).is_ok()).map(Some).ok_or_else(|| {
            Failure::usage(format!("`{text}` is no broker id; give a number below 2147483648, or auto"))
        }),
    }
}

/// What makes a door safe that others can reach.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Safety {
    /// It speaks TLS.
    pub(crate) tls: bool,
    /// The operator says that it need not.
    pub(crate) insecure: bool,
}

fn door(
    name: &str,
    listen: Option<SocketAddr>,
    port: u16,
    advertise: Option<String>,
    safe: Safety,
) -> Result<Door, Failure> {
    let listen = listen.unwrap_or(loopback(port));
    if !listen.ip().is_loopback() && !safe.tls && !safe.insecure {
        return Err(Failure::usage(format!(
            "--{name}-listen {listen} can be reached by others, without TLS or password; give --tls-cert and --tls-key, or say \
             --insecure if that is meant"
        )));
    }
    if listen.ip().is_unspecified() && advertise.is_none() {
        let any = match listen.ip() {
            IpAddr::V4(_) => "0.0.0.0",
            IpAddr::V6(_) => "[::]",
        };
        return Err(Failure::usage(format!(
            "--{name}-listen {listen}: clients cannot connect to {any}; give --{name}-advertise HOST:PORT"
        )));
    }
    match advertise.as_ref().filter(|text| !listeners::is_address(text)) {
        Some(wrong) => Err(Failure::usage(format!("--{name}-advertise `{wrong}` is not HOST:PORT"))),
        None => Ok(Door { listen, advertise, tls: safe.tls }),
    }
}

/// The internal door: beside the gRPC door unless told otherwise. What comes in by it is proven, so it needs no `--insecure`.
fn internal(
    secret: Option<Secret>,
    tls: Option<InternalTls>,
    grpc: &Door,
    listen: Option<SocketAddr>,
    advertise: Option<String>,
) -> Result<Option<Internal>, Failure> {
    let Some(secret) = secret else {
        return match listen.is_some() || advertise.is_some() || tls.is_some() {
            true => Err(Failure::usage(
                "the internal door is for brokers that share a secret; give --cluster-secret-file or MILLPOND_CLUSTER_SECRET",
            )),
            false => Ok(None),
        };
    };
    // Whoever looks for a broker on this machine reads the port in the metadata store.
    let beside = match grpc.listen.ip() {
        ip if ip.is_loopback() => SocketAddr::new(ip, 0),
        ip => SocketAddr::new(ip, INTERNAL_PORT),
    };
    let listen = listen.unwrap_or(beside);
    let host = grpc.advertise.as_ref().and_then(|advertise| advertise.rsplit_once(':')).map(|(host, _)| host);
    let beside = host.filter(|_| listen.port() != 0).map(|host| format!("{host}:{}", listen.port()));
    // Its TLS is its own.
    let safe = Safety { tls: false, insecure: true };
    let door = door("internal", Some(listen), INTERNAL_PORT, advertise.or(beside), safe)?;
    Ok(Some(Internal { door, secret, tls }))
}

fn object_store(url: String) -> Result<String, Failure> {
    if holds_credentials(&url) {
        return Err(Failure::usage(
            "the object store's URL holds a user or password, and would be logged; give credentials as the cloud's own tools \
             take them, such as AWS_ACCESS_KEY_ID",
        ));
    }
    if ["s3://", "gs://", "az://", "file:///", "memory://"].iter().any(|scheme| url.starts_with(scheme)) {
        return Ok(url);
    }
    Err(Failure::usage(format!("--object-store `{url}` is none of s3://, gs://, az://, file:///DIR and memory://")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn least() -> Settings {
        Settings {
            data_dir: Some("/d".into()),
            metadata: Some("embedded:/m".to_owned()),
            object_store: Some("memory://".to_owned()),
            ..Settings::default()
        }
    }

    #[test]
    fn defaults_fill_what_nobody_said() {
        let resolved = least().resolve().expect("the least is enough");
        assert_eq!(resolved.id, None);
        assert_eq!(resolved.cluster, "millpond");
        assert_eq!(resolved.metadata, Metadata::Embedded("/m".into()));
        let plain = |port| Door { listen: loopback(port), advertise: None, tls: false };
        assert_eq!((resolved.grpc, resolved.http, resolved.tls), (plain(7400), plain(7480), None));
        assert_eq!(resolved.kafka, [("default".to_owned(), plain(9092))]);
    }

    #[test]
    fn internal_door_stands_beside_the_grpc_door_once_there_is_a_secret() {
        let resolve = |change: fn(&mut Settings)| {
            let mut settings = least();
            settings.cluster_secret = Some("sixteen bytes at least".parse().expect("any text will do"));
            change(&mut settings);
            settings.resolve().expect("it can work").internal.expect("there is a secret").door
        };
        assert_eq!(least().resolve().expect("no secret is fine").internal, None);
        let any = SocketAddr::from(([0; 4], 7400));
        let check = |found: Door, listen: &str, advertise: Option<&str>| {
            let listen = listen.parse().expect("an address");
            assert_eq!(found, Door { listen, advertise: advertise.map(str::to_owned), tls: false });
        };
        check(resolve(|_| {}), "127.0.0.1:0", None);
        check(resolve(|settings| settings.grpc_advertise = Some("h:9".to_owned())), "127.0.0.1:0", None);
        check(
            resolve(|settings| {
                settings.grpc_listen = Some(SocketAddr::from(([10, 0, 0, 1], 9)));
                settings.insecure = Some(true);
            }),
            "10.0.0.1:7401",
            None,
        );
        let mut open = least();
        (open.grpc_listen, open.insecure, open.grpc_advertise) = (Some(any), Some(true), Some("host:7400".to_owned()));
        open.cluster_secret = Some("sixteen bytes at least".parse().expect("any text will do"));
        let found = open.clone().resolve().expect("it can work").internal.expect("there is a secret").door;
        check(found, "0.0.0.0:7401", Some("host:7401"));
        open.internal_advertise = Some("other:1".to_owned());
        let found = open.resolve().expect("it can work").internal.expect("there is a secret").door;
        check(found, "0.0.0.0:7401", Some("other:1"));
        let mut lonely = least();
        lonely.internal_listen = Some(any);
        assert!(lonely.resolve().expect_err("no secret").to_string().contains("--cluster-secret-file"));
    }

    #[test]
    fn file_is_read_and_flags_win() {
        let file =
            "id = 3\ndata_dir = '/file'\ncache-memory = '64MiB'\nwal-bytes = 1024\ngrpc-listen = '127.0.0.1:1'\n";
        let (file, _) = Settings::parse(file).expect("the file is valid");
        let flags = Settings { data_dir: Some("/flag".into()), ..Settings::default() };
        let both = flags.or(file);
        assert_eq!(both.data_dir, Some("/flag".into()));
        assert_eq!(both.id.as_deref(), Some("3"));
        assert_eq!((both.cache_memory, both.wal_bytes), (Some(ByteCount(64 << 20)), Some(ByteCount(1024))));
        assert_eq!(both.grpc_listen, Some(loopback(1)));
    }

    #[test]
    fn file_mistakes_are_refused() {
        for (file, part) in [
            ("data-dri = '/x'", "data-dri"),
            ("data-dir = '/x'\ndata_dir = '/y'", "twice"),
            ("cache-memory = '64 bananas'", "64 bananas"),
            ("grpc-listen = 'localhost'", "grpc-listen"),
            ("id = -1", "id"),
            ("= 1", "TOML"),
            ("log = 'millpond=loud'", "level"),
            ("log = 'info'\nlog = 'warn'", "duplicate"),
            ("log-format = 'xml'", "xml"),
            ("trace_ratio = 2.0", "between 0 and 1"),
        ] {
            let error = Settings::parse(file).expect_err(file);
            assert!(error.contains(part), "{file}: {error}");
        }
        // What holds a secret is named by its place or its key.
        for (file, part) in [
            ("rack = 'a'\netcd-user = root:geheim", "line 2, column 13"),
            ("cluster-secret = 'geheim\nrack = 'a'", "no TOML at line"),
            ("cluster-secret = geheim", "quote"),
            ("cluster-secret geheim", "line 1"),
            ("cluster-secret = 'geheim' 'geheim'", "line 1"),
            ("cluster-secret = 'geheim'\ncluster-secret = 'geheim'", "duplicate"),
            ("cluster-secret = 'geheim'\ncluster_secret = 'geheim'", "`cluster_secret` is set twice"),
            ("cluster_secret = 7337733773377337", "`cluster_secret` is a text"),
            ("etcd-user = { root = 'geheim' }", "`etcd-user` is a text"),
        ] {
            let error = Settings::parse(file).expect_err(file);
            let shown = error.contains("geheim") || error.contains("7337");
            assert!(error.contains(part) && !shown, "{file}: {error}");
        }
    }

    #[test]
    fn failures_name_the_file() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("broker.toml");
        let failure = |path: &Path| Settings::read(path).expect_err("the file is bad").to_string();
        assert!(failure(&path).contains("broker.toml"));
        std::fs::write(&path, "rack = 7").expect("the folder can be written");
        let failure = failure(&path);
        assert!(failure.contains("broker.toml") && failure.contains("rack") && !failure.contains('\n'), "{failure}");
        std::fs::write(&path, "rack = 'a'").expect("the folder can be written");
        assert_eq!(Settings::read(&path).expect("the file is good").0.rack.as_deref(), Some("a"));
    }

    #[test]
    fn settings_that_cannot_work_are_refused() {
        let check = |change: fn(&mut Settings), part: &str| {
            let mut settings = least();
            change(&mut settings);
            let failure = settings.resolve().expect_err(part);
            assert!(failure.to_string().contains(part), "{failure}");
        };
        check(|settings| settings.data_dir = None, "MILLPOND_DATA_DIR");
        check(|settings| settings.metadata = Some("embedded:".to_owned()), "neither embedded:DIR");
        check(|settings| settings.etcd_ca = Some("/ca".into()), "--etcd-");
        check(|settings| settings.object_store = Some("/tmp/x".to_owned()), "file:///DIR");
        check(|settings| settings.object_store = Some("s3://key:secret@bucket".to_owned()), "AWS_ACCESS_KEY_ID");
        check(|settings| settings.id = Some("2147483648".to_owned()), "no broker id");
        check(|settings| settings.grpc_listen = Some(SocketAddr::from(([10, 0, 0, 1], 1))), "--insecure");
        check(
            |settings| (settings.kafka_listen, settings.insecure) = (Some(SocketAddr::from(([0; 4], 1))), Some(true)),
            "--kafka-advertise",
        );
        check(|settings| settings.grpc_advertise = Some("host".to_owned()), "not HOST:PORT");
        check(|settings| settings.num_partitions = Some(0), "1 to 10000");
        check(|settings| settings.num_partitions = Some(10_001), "1 to 10000");
        let span = |text: &str| -> Option<Span> { Some(text.parse().expect("a time")) };
        let groups = |change: &dyn Fn(&mut Settings)| {
            let mut settings = least();
            change(&mut settings);
            settings.resolve().map(|resolved| resolved.groups).map_err(|failure| failure.to_string())
        };
        let refused = |change: &dyn Fn(&mut Settings)| groups(change).expect_err("it cannot work");
        assert!(refused(&|settings| settings.group_min_session_timeout = span("31m")).contains("--group-max"));
        assert!(refused(&|settings| settings.group_max_session_timeout = span("5s")).contains("--group-max"));
        assert!(refused(&|settings| settings.group_min_session_timeout = span("0s")).contains("1ms"));
        assert!(refused(&|settings| settings.group_max_session_timeout = span("25d")).contains("24d"));
        assert!(refused(&|settings| settings.group_initial_rebalance_delay = span("25d")).contains("24d"));
        assert!(
            refused(&|settings| settings.group_consumer_min_session_timeout = span("46s")).contains("lies between")
        );
        assert!(
            refused(&|settings| settings.group_consumer_max_session_timeout = span("44s")).contains("lies between")
        );
        assert!(
            refused(&|settings| settings.group_consumer_min_heartbeat_interval = span("0s")).contains("at least 1ms")
        );
        assert!(refused(&|settings| settings.group_consumer_max_heartbeat_interval = span("25d")).contains("24d"));
        let wider = groups(&|settings| {
            settings.group_session_timeout = span("90s");
            settings.group_heartbeat_interval = span("1s");
            settings.group_consumer_max_heartbeat_interval = span("20s");
        });
        let expected = ((45_000, 90_000), (1_000, 20_000));
        assert_eq!(
            wider.map(|limits| (limits.session_timeout_bounds_ms, limits.heartbeat_interval_bounds_ms)),
            Ok(expected)
        );
        let set = groups(&|settings| {
            settings.group_min_session_timeout = span("1s");
            settings.group_max_session_timeout = span("2s");
            settings.group_initial_rebalance_delay = span("0s");
        });
        let expected = (1_000, 2_000);
        assert_eq!(
            set.map(|limits| (limits.classic_session_timeout_ms, limits.initial_rebalance_delay_ms)),
            Ok((expected, 0))
        );
    }
}
