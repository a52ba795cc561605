//! What must hold of any bytes that are read from the metadata store or from the embedded database.
//!
//! For the fuzz targets, and for ordinary tests that replay them.

pub use crate::embedded::properties::{stored, stored_seeds};
pub use crate::keys::properties::{key, key_seeds};
pub use crate::store::properties::{record, record_seeds};

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_log::testing::{check, memory::Meter};

    #[global_allocator]
    static METER: Meter = Meter;

    #[test]
    fn keys_hold() {
        check("metadata_key", &key_seeds(), key);
    }

    #[test]
    fn records_hold() {
        check("metadata_record", &record_seeds(), record);
    }

    #[test]
    fn stored_history_holds() {
        check("metadata_stored", &stored_seeds(), stored);
    }
}
