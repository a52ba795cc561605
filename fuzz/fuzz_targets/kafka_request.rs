//! Whole frames of Kafka requests.

#![no_main]

millpond_fuzz::target!(millpond_broker::properties::kafka_request);
