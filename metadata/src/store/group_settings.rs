//! What is set on groups. Which settings there are, and what they may be, is decided elsewhere.

use super::transition::{Guard, Transition};
use super::{Outcome, Session, Store, StoreError, Versioned, codec};
use crate::keys::Key;
use crate::kv::{Revision, Write};
use millpond_core::records::GroupSettingsRecord;

impl Store {
    /// What is set on a group; none if nothing is.
    ///
    /// # Errors
    /// As all reads.
    pub async fn group_settings(&self, group: &str) -> Result<Option<Versioned<GroupSettingsRecord>>, StoreError> {
        self.read(&Key::GroupSettings(group.to_owned())).await
    }

    /// Replaces what was set on a group when its record was read at `seen`, which is `Revision::ABSENT` if there was none. A record of nothing
    /// is none.
    ///
    /// # Errors
    /// `Refused`: the record is too large. Others as all reads.
    pub async fn alter_group_settings(
        &self,
        actor: &Session,
        group: &str,
        seen: Revision,
        record: &GroupSettingsRecord,
    ) -> Result<Outcome, StoreError> {
        let key = self.keys.encode(&Key::GroupSettings(group.to_owned()));
        let guards = vec![self.own_session(actor), Guard::unmoved(key.clone(), seen)];
        let (write, proof) = if record.settings.is_empty() {
            (Write::delete(&key), None)
        } else {
            let value = codec::value(record);
            (Write::put(key.clone(), value.clone()), Some((key, value)))
        };
        Ok(self.run(Transition { guards, writes: vec![write], proof }).await?.into())
    }
}
