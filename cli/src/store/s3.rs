//! A bucket on S3, or on a service that speaks its protocol: credentials by the whole chain of the AWS tools, and a look at the
//! bucket before it is used. Never logs a secret.

use super::{Missing, no_retries};
use crate::failure::{Doing, Failure};
use async_trait::async_trait;
use aws_config::{BehaviorVersion, SdkConfig};
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider};
use aws_sdk_s3::Client;
use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::error::{DisplayErrorContext, SdkError};
use aws_sdk_s3::operation::create_bucket::CreateBucketError;
use aws_sdk_s3::operation::head_bucket::HeadBucketError;
use aws_sdk_s3::types::{BucketLocationConstraint, CreateBucketConfiguration};
use object_store::CredentialProvider;
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey, AwsCredential, Checksum};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Where a bucket is if nobody says, as the AWS tools have it; services other than AWS do not care.
const REGION_DEFAULT: &str = "us-east-1";

/// How long the look at the bucket may take, tries included.
const LOOK_MAX: Duration = Duration::from_secs(20);

/// Opens `bucket`.
pub(super) async fn open(bucket: &str, missing: Missing) -> Result<AmazonS3, Failure> {
    let shared = aws_config::defaults(BehaviorVersion::latest()).load().await;
    let client = Client::from_conf(client_config(&shared));
    look(&client, &shared, bucket, missing).await?;
    let refused = |error: object_store::Error| Failure::usage(format!("cannot use the bucket `{bucket}`: {error}"));
    data_path(&shared, bucket).build().map_err(refused)
}

/// For what the data path does not do: looking at the bucket and creating it.
fn client_config(shared: &SdkConfig) -> aws_sdk_s3::Config {
    let timeout = TimeoutConfig::builder().operation_timeout(LOOK_MAX).build();
    let mut config = aws_sdk_s3::config::Builder::from(shared).timeout_config(timeout);
    if shared.region().is_none() {
        config = config.region(aws_sdk_s3::config::Region::new(REGION_DEFAULT));
    }
    // Buckets of services other than AWS have no host name of their own.
    config.force_path_style(shared.endpoint_url().is_some()).build()
}

/// What carries the objects. Settings by `AWS_*`; what only profile files and the chain know comes from `shared`.
fn data_path(shared: &SdkConfig, bucket: &str) -> AmazonS3Builder {
    let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket).with_retry(no_retries());
    let region = shared.region().map_or(REGION_DEFAULT, |region| region.as_ref());
    builder = builder.with_region(region);
    if let Some(endpoint) = shared.endpoint_url() {
        builder = builder.with_endpoint(endpoint);
    }
    // Rule T3: the store keeps nothing that does not have the digest which was sent along, of an object and of each part. It is the one that
    // signatures have anyway, so it costs nothing. `AWS_CHECKSUM_ALGORITHM` names another.
    if builder.get_config_value(&AmazonS3ConfigKey::Checksum).is_none() {
        builder = builder.with_checksum_algorithm(Checksum::SHA256);
    }
    let unsigned = builder.get_config_value(&AmazonS3ConfigKey::SkipSignature).is_some_and(|value| value == "true");
    match shared.credentials_provider() {
        Some(chain) if !unsigned => builder.with_credentials(Arc::new(Chain(chain))),
        _ => builder,
    }
}

/// Makes sure that the bucket can be used, as far as one request tells.
async fn look(client: &Client, shared: &SdkConfig, bucket: &str, missing: Missing) -> Result<(), Failure> {
    let Err(error) = client.head_bucket().bucket(bucket).send().await else { return Ok(()) };
    match judge(&error) {
        Bucket::Missing if missing == Missing::Create => create(client, bucket).await,
        Bucket::Missing => Err(Failure::new(format!(
            "there is no bucket `{bucket}`; create it, or check its name, the region and AWS_ENDPOINT_URL"
        ))),
        Bucket::Forbidden => Err(Failure::new(format!(
            "the bucket `{bucket}` may not be used with these credentials; allow s3:ListBucket on it, and s3:GetObject, \
             s3:PutObject and s3:DeleteObject on its objects"
        ))),
        Bucket::Elsewhere => {
            Err(Failure::new(format!("the bucket `{bucket}` is in another region; set AWS_REGION to where it is")))
        }
        Bucket::Unsigned(reason) if !has_credentials(shared).await => Err(Failure::new(format!(
            "no credentials for the bucket `{bucket}`: {reason}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
        ))),
        Bucket::Unsigned(reason) | Bucket::Unreachable(reason) => {
            tracing::warn!(
                bucket,
                reason,
                "the bucket cannot be reached now; going on, and trying again when it is needed"
            );
            Ok(())
        }
    }
}

/// Whether the chain has any: a request that was not sent may also have found nobody there.
async fn has_credentials(shared: &SdkConfig) -> bool {
    match shared.credentials_provider() {
        Some(chain) => chain.provide_credentials().await.is_ok(),
        None => false,
    }
}

/// What an answer says of the bucket.
#[derive(Debug, PartialEq, Eq)]
enum Bucket {
    Missing,
    Forbidden,
    Elsewhere,
    /// Nothing was sent, perhaps because there was nothing to sign it with.
    Unsigned(String),
    Unreachable(String),
}

fn judge(error: &SdkError<HeadBucketError>) -> Bucket {
    let status = error.raw_response().map(|response| response.status().as_u16());
    match (error, status) {
        (_, Some(404)) => Bucket::Missing,
        (_, Some(401 | 403)) => Bucket::Forbidden,
        (_, Some(301 | 400)) => Bucket::Elsewhere,
        (SdkError::ConstructionFailure(_), None) => Bucket::Unsigned(DisplayErrorContext(error).to_string()),
        (SdkError::DispatchFailure(failure), None) if failure.is_other() => {
            Bucket::Unsigned(DisplayErrorContext(error).to_string())
        }
        _ => Bucket::Unreachable(DisplayErrorContext(error).to_string()),
    }
}

async fn create(client: &Client, bucket: &str) -> Result<(), Failure> {
    let region = client.config().region().map(ToString::to_string).filter(|region| region != REGION_DEFAULT);
    let place = region.map(|region| {
        let constraint = BucketLocationConstraint::from(region.as_str());
        CreateBucketConfiguration::builder().location_constraint(constraint).build()
    });
    let created = client.create_bucket().bucket(bucket).set_create_bucket_configuration(place).send().await;
    match created.map_err(SdkError::into_service_error) {
        Ok(_) | Err(CreateBucketError::BucketAlreadyOwnedByYou(_)) => Ok(()),
        Err(error) => {
            Err(DisplayErrorContext(&error).to_string()).doing(format!("cannot create the bucket `{bucket}`"))
        }
    }
}

/// The credential chain of the AWS tools: variables, profile files, web identity, containers, instances. It refreshes by itself.
struct Chain(SharedCredentialsProvider);

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Chain")
    }
}

#[async_trait]
impl CredentialProvider for Chain {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let found = self.0.provide_credentials().await;
        let found = found
            .map_err(|error| object_store::Error::Unauthenticated { path: String::new(), source: Box::new(error) })?;
        Ok(Arc::new(AwsCredential {
            key_id: found.access_key_id().to_owned(),
            secret_key: found.secret_access_key().to_owned(),
            token: found.session_token().map(str::to_owned),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aws_credential_types::Credentials;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    fn chain() -> SharedCredentialsProvider {
        SharedCredentialsProvider::new(Credentials::new(
            "the-id",
            "the-secret",
            Some("the-token".to_owned()),
            None,
            "test",
        ))
    }

    /// A service that gives the same answer to every request.
    fn answering(status: &'static str) -> (SdkConfig, std::thread::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let endpoint = format!("http://{}", listener.local_addr().expect("it is bound"));
        let served = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("the client comes");
            let mut request = [0; 4096];
            // What it asks does not matter, nor whether all of it has arrived.
            let _ = stream.read(&mut request).expect("it asks");
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            stream.write_all(answer.as_bytes()).expect("it listens");
        });
        let config = SdkConfig::builder()
            .behavior_version(BehaviorVersion::latest())
            .endpoint_url(endpoint)
            .credentials_provider(chain())
            .retry_config(aws_config::retry::RetryConfig::disabled());
        (config.build(), served)
    }

    #[tokio::test]
    async fn what_is_wrong_with_a_bucket_is_said_in_words() {
        for (status, words) in [
            ("200 OK", None),
            ("404 Not Found", Some("there is no bucket `b`")),
            ("403 Forbidden", Some("may not be used")),
            ("301 Moved Permanently", Some("another region")),
            // A service that has trouble is waited for.
            ("503 Slow Down", None),
        ] {
            let (config, served) = answering(status);
            let client = Client::from_conf(client_config(&config));
            let looked = look(&client, &config, "b", Missing::Refuse).await;
            served.join().expect("it answered");
            match (looked, words) {
                (Ok(()), None) => {}
                (Err(failure), Some(words)) => assert!(failure.to_string().contains(words), "{status}: {failure}"),
                (looked, _) => panic!("{status}: {looked:?}"),
            }
        }
    }

    #[tokio::test]
    async fn a_service_that_cannot_be_reached_keeps_nobody_from_starting() {
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port");
        let config = SdkConfig::builder()
            .behavior_version(BehaviorVersion::latest())
            .endpoint_url(format!("http://{free}"))
            .credentials_provider(chain())
            .retry_config(aws_config::retry::RetryConfig::disabled())
            .build();
        look(&Client::from_conf(client_config(&config)), &config, "b", Missing::Refuse).await.expect("case S1");
    }

    #[tokio::test]
    async fn a_service_that_hangs_up_keeps_nobody_from_starting() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let endpoint = format!("http://{}", listener.local_addr().expect("it is bound"));
        let hung_up = std::thread::spawn(move || drop(listener.accept().expect("the client comes")));
        let config = SdkConfig::builder()
            .behavior_version(BehaviorVersion::latest())
            .endpoint_url(endpoint)
            .credentials_provider(chain())
            .retry_config(aws_config::retry::RetryConfig::disabled())
            .build();
        look(&Client::from_conf(client_config(&config)), &config, "b", Missing::Refuse).await.expect("case S1");
        hung_up.join().expect("the client came");
    }

    #[tokio::test]
    async fn secrets_reach_the_store_and_no_log() {
        let chain = Chain(chain());
        let found = chain.get_credential().await.expect("they are there");
        let found = (&*found.key_id, &*found.secret_key, found.token.as_deref());
        assert_eq!(found, ("the-id", "the-secret", Some("the-token")));
        let config = SdkConfig::builder()
            .behavior_version(BehaviorVersion::latest())
            .credentials_provider(chain.0.clone())
            .build();
        let logged = format!("{chain:?} {:?}", data_path(&config, "b").build().expect("it is whole"));
        for secret in ["the-secret", "the-token"] {
            assert!(!logged.contains(secret), "{logged}");
        }
    }
}
