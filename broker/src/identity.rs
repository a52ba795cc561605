//! Which id a broker has that was not told one: that of its data, else a new one. It gives none out twice.

use crate::server::Components;
use crate::start_error::StartError;
use crate::wal::Wal;
use millpond_log::BrokerId;
use millpond_metadata::store::Store;
use std::path::Path;
use std::sync::Arc;

/// The id for `--id auto`: the one in the data directory, or one that was never handed out, which the first start writes there.
///
/// A start that fails in between wastes an id.
///
/// # Errors
/// `Wal` when the directory does not say whose it is, `Metadata` when no id could be had.
pub async fn auto_id(components: &Components, data_dir: &Path) -> Result<BrokerId, StartError> {
    let (dir, disk) = (data_dir.join("wal"), Arc::clone(&components.disk));
    let owner = tokio::task::spawn_blocking(move || Wal::owner(&dir, disk.as_ref())).await;
    if let Some(owner) = owner.map_err(|panic| StartError::Recovery(panic.to_string()))?? {
        return Ok(owner.broker);
    }
    let store = Store::new(Arc::clone(&components.metadata), components.keys.clone());
    Ok(store.allocate_broker_id().await?)
}
