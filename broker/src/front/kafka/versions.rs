//! ApiVersions: which requests this broker answers, in which versions.

use super::wire::{requests, responses};

requests! {
    /// Asks for the list. Names the client's software from version 3 on.
    ApiVersionsRequest {
        client_software_name: String => 3..,
        client_software_version: String => 3..,
    }
}

responses! {
    /// The list. Its header has no tagged fields in any version, since the client does not know ours yet (case A2).
    ApiVersionsResponse {
        error_code: i16 => ..,
        api_keys: Vec<ApiVersion> => ..,
        throttle_time_ms: i32 => 1..,
    }
    /// One request we answer.
    ApiVersion {
        api_key: i16 => ..,
        min_version: i16 => ..,
        max_version: i16 => ..,
    }
}
