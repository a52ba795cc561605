//! What must hold of any bytes that reach the broker: from clients, from other brokers, and from its own disk.
//!
//! For the fuzz targets, and for ordinary tests that replay them. Nothing here is part of the product.

pub use crate::front::kafka::properties::{kafka_request, kafka_request_seeds};
pub use crate::peers::properties::{push_frame, push_frame_seeds};
pub use crate::wal::properties::{wal_files, wal_files_seeds};

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_log::testing::{check, memory::Meter};

    #[global_allocator]
    static METER: Meter = Meter;

    #[test]
    fn kafka_requests_hold() {
        check("kafka_request", &kafka_request_seeds(), kafka_request);
    }

    #[test]
    fn push_frames_hold() {
        check("push_frame", &push_frame_seeds(), push_frame);
    }

    #[test]
    fn wal_files_hold() {
        check("wal_files", &wal_files_seeds(), wal_files);
    }
}
