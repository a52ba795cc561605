//! Kafka's own programs, as they are: command-line tools, performance and verifiable clients, Streams and Connect, each against processes of
//! the binary. What is special to one of them stands in its own file.

mod connect;
mod copier;
mod distributed;
mod group_settings;
mod groups;
mod java;
mod moves;
mod records;
mod store_away;
mod streams;
mod topics;
mod transactions;

/// Finds Kafka's archives, or says that the test could not run and returns.
macro_rules! archives_or_skip {
    ($test:expr) => {
        match millpond_tests::tools::Tool::KafkaPrograms.find() {
            Ok(archives) => archives,
            Err(why) => return millpond_tests::tools::skip($test, &why),
        }
    };
}

use archives_or_skip;
