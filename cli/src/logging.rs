//! Where the broker's logs go: standard error, as text or as one JSON object a line.

use tracing_subscriber::EnvFilter;

/// How much a broker says, and how.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Logs")]
pub(crate) struct LogArgs {
    /// What is logged: error, warn, info, debug or trace, also by module, such as info,millpond_broker::wal=debug
    #[arg(long, env = "MILLPOND_LOG", value_name = "FILTER", value_parser = filter)]
    log: Option<String>,
    /// How a line looks
    #[arg(long, env = "MILLPOND_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

fn filter(text: &str) -> Result<String, String> {
    EnvFilter::try_new(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

impl LogArgs {
    /// Begins to log; `default` holds unless a filter was given.
    pub(crate) fn begin(&self, default: &str) {
        let filter = EnvFilter::new(self.log.as_deref().unwrap_or(default));
        let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
        match self.log_format {
            LogFormat::Text => builder.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).init(),
            LogFormat::Json => builder.json().init(),
        }
    }
}
