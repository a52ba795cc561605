//! Settings of groups, which are kept in the metadata store by the group's name and hold wherever the group is coordinated.

use crate::api::{ApiError, SettingsChange};
use crate::broker::{Broker, stopping};
use crate::topics::unavailable;
use millpond_core::groups::{
    GROUP_NAME_BYTES_MAX, GROUP_SETTINGS, GroupLimits, GroupOverrides, GroupSetting, GroupSettingError, alter_settings,
    check_settings,
};
use millpond_core::records::GroupSettingsRecord;
use millpond_log::ErrorCode;
use millpond_metadata::kv::Revision;
use millpond_metadata::store::Outcome;
use std::collections::BTreeMap;
use std::time::Duration;

/// Longest wait until this broker goes by what the metadata store has taken in.
const SERVED_WAIT_MAX: Duration = Duration::from_secs(5);

/// Most groups on which something is set: every broker remembers all of them.
const GROUPS_MAX: usize = 10_000;

/// A setting of a group, with what holds.
pub(crate) struct SetOnGroup {
    /// What is fixed about it.
    pub(crate) setting: &'static GroupSetting,
    /// What is set on the group, if it is.
    pub(crate) set: Option<String>,
    /// What this broker was told at its start.
    pub(crate) of_broker: String,
    /// What a broker that is told nothing goes by.
    pub(crate) default: String,
}

impl Broker {
    /// Every setting of a group, by name. A group need not be there to have some.
    ///
    /// # Errors
    /// `INVALID_REQUEST`: no group has such a name.
    pub(crate) fn group_settings(&self, group: &str) -> Result<Vec<SetOnGroup>, ApiError> {
        named(group)?;
        let world = self.inner().coordinators.world();
        let world = world.borrow();
        let overrides = world.overrides.get(group).copied().unwrap_or_default();
        Ok(described(&overrides, &world.limits))
    }

    /// The groups on which something is set, by name.
    pub(crate) fn groups_with_settings(&self) -> Vec<String> {
        self.inner().coordinators.world().borrow().settings.keys().cloned().collect()
    }

    /// Changes settings of a group, all or none. This broker goes by them when this returns, the others a little later.
    ///
    /// # Errors
    /// `INVALID_REQUEST`: no group has such a name. `INVALID_CONFIG`: a setting is unknown, does not take that value, or contradicts another.
    /// `POLICY_VIOLATION`: too many groups have settings of their own.
    pub(crate) async fn alter_group(
        &self,
        group: &str,
        change: SettingsChange,
        validate_only: bool,
    ) -> Result<(), ApiError> {
        self.counted("AlterGroup", self.alter_settings_of_group(group, &change, validate_only).await)
    }

    async fn alter_settings_of_group(
        &self,
        group: &str,
        change: &SettingsChange,
        validate_only: bool,
    ) -> Result<(), ApiError> {
        named(group)?;
        let limits = self.inner().config.groups;
        let session = self.session()?;
        let store = &self.inner().store;
        let (revision, set) = loop {
            let seen = store.group_settings(group).await.map_err(|error| unavailable(&error))?;
            let (base, before) =
                seen.map_or((Revision::ABSENT, BTreeMap::new()), |seen| (seen.revision, seen.value.settings));
            // Of what the store has: what another broker has altered since this one was told of the group stays.
            let next = changed(&before, change, &limits)?;
            if base == Revision::ABSENT && !next.is_empty() && self.groups_with_settings().len() >= GROUPS_MAX {
                let message = format!("{GROUPS_MAX} groups have settings of their own; delete those of others first");
                return Err(ApiError::new(ErrorCode::PolicyViolation, message));
            }
            if validate_only {
                return Ok(());
            }
            let set = !next.is_empty();
            if next == before {
                break (base, set);
            }
            let record = GroupSettingsRecord { settings: next };
            let altered = store.alter_group_settings(&session, group, base, &record).await;
            match altered.map_err(|error| unavailable(&error))? {
                Outcome::Committed { revision } => break (revision, set),
                Outcome::Fenced => return Err(stopping()),
                // Each change may be made again.
                Outcome::Conflict | Outcome::Unknown => {}
            }
        };
        let mut world = self.inner().coordinators.world();
        let told = world.wait_for(|world| match world.settings.get(group) {
            Some(seen) => seen.revision > revision || (set && seen.revision == revision),
            None => !set,
        });
        let _ = tokio::time::timeout(SERVED_WAIT_MAX, told).await;
        Ok(())
    }
}

/// Refuses what is no name of a group.
fn named(group: &str) -> Result<(), ApiError> {
    if (1..=GROUP_NAME_BYTES_MAX).contains(&group.len()) {
        return Ok(());
    }
    let message = format!("the name of a group is 1 to {GROUP_NAME_BYTES_MAX} bytes long");
    Err(ApiError::new(ErrorCode::InvalidRequest, message))
}

fn described(overrides: &GroupOverrides, limits: &GroupLimits) -> Vec<SetOnGroup> {
    let of = |setting: &'static GroupSetting| SetOnGroup {
        setting,
        set: overrides.get(setting).map(|ms| ms.to_string()),
        of_broker: setting.default(limits).to_string(),
        default: setting.default(&GroupLimits::default()).to_string(),
    };
    GROUP_SETTINGS.iter().map(of).collect()
}

fn changed(
    before: &BTreeMap<String, String>,
    change: &SettingsChange,
    limits: &GroupLimits,
) -> Result<BTreeMap<String, String>, ApiError> {
    let next = match change {
        SettingsChange::Alter(alterations) => alter_settings(before, alterations, limits),
        SettingsChange::Replace(all) => check_settings(all, limits).map(|()| all.clone()),
    };
    next.map_err(|error: GroupSettingError| ApiError::new(ErrorCode::InvalidConfig, error.to_string()))
}
