//! Clients of servers: S3, Google Cloud Storage, and Azure Blob Storage.
//!
//! # Invariants
//!
//! - **C1** Options come from the environment, and options of the place override the environment.
//!   The error for a wrong option names the option.
//! - **C2** A client repeats nothing by itself (`objects::B1`). It connects without TLS only to
//!   an endpoint that is given as `http://`, and to an emulator.

use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "s3")]
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
#[cfg(feature = "az")]
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
#[cfg(feature = "gs")]
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::{ClientOptions, ObjectStore, RetryConfig};

use crate::StoreError;
use crate::objects::{Objects, text};

/// The time limit of a request of any length. `objects` has further limits, which depend on the
/// length.
const TIMEOUT: Duration = Duration::from_secs(180);

/// The settings with which a client connects and repeats no request (C2).
fn client(is_plain: bool) -> (ClientOptions, RetryConfig) {
    // The installation fails if a provider is installed already. The client then uses the installed
    // provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = ClientOptions::new().with_allow_http(is_plain).with_timeout(TIMEOUT);
    (client, RetryConfig { max_retries: 0, ..RetryConfig::default() })
}

/// Reads the name of an option (C1).
fn key<K: std::str::FromStr>(name: &str, scheme: &str) -> Result<K, StoreError> {
    let unknown = |_| StoreError::Refused(format!("no option {name:?} of {scheme}:// places"));
    name.parse().map_err(unknown)
}

fn finish<S: ObjectStore>(
    title: String,
    built: object_store::Result<S>,
) -> Result<Objects, StoreError> {
    let store = built.map_err(|error| StoreError::Refused(text(&error)))?;
    Objects::new(title, Arc::new(store))
}

fn titled(scheme: &str, bucket: &str, endpoint: &str) -> String {
    let server = if endpoint.is_empty() { String::new() } else { format!(" at {endpoint}") };
    format!("{scheme}://{bucket}{server}")
}

impl Objects {
    /// Opens a bucket of a server that speaks S3. Options also come from the `AWS_` variables of
    /// the environment.
    ///
    /// # Errors
    ///
    /// [`StoreError::Refused`] for an option that the client does not know. The error names the
    /// option.
    #[cfg(feature = "s3")]
    pub fn s3(bucket: &str, options: &[(String, String)]) -> Result<Self, StoreError> {
        let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
        for (name, value) in options {
            builder = builder.with_config(key::<AmazonS3ConfigKey>(name, "s3")?, value);
        }
        let endpoint = builder.get_config_value(&AmazonS3ConfigKey::Endpoint).unwrap_or_default();
        let (client, retry) = client(endpoint.starts_with("http://"));
        let built = builder.with_client_options(client).with_retry(retry).build();
        finish(titled("s3", bucket, &endpoint), built)
    }

    /// Opens a bucket of Google Cloud Storage. Options also come from the `GOOGLE_` variables of
    /// the environment.
    ///
    /// # Errors
    ///
    /// Those of [`Objects::s3`].
    #[cfg(feature = "gs")]
    pub fn gs(bucket: &str, options: &[(String, String)]) -> Result<Self, StoreError> {
        let mut builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket);
        for (name, value) in options {
            builder = builder.with_config(key::<GoogleConfigKey>(name, "gs")?, value);
        }
        let (client, retry) = client(false);
        let built = builder.with_client_options(client).with_retry(retry).build();
        finish(titled("gs", bucket, ""), built)
    }

    /// Opens a container of Azure Blob Storage. Options also come from the `AZURE_` variables of
    /// the environment.
    ///
    /// # Errors
    ///
    /// Those of [`Objects::s3`].
    #[cfg(feature = "az")]
    pub fn az(container: &str, options: &[(String, String)]) -> Result<Self, StoreError> {
        let mut builder = MicrosoftAzureBuilder::from_env().with_container_name(container);
        for (name, value) in options {
            builder = builder.with_config(key::<AzureConfigKey>(name, "az")?, value);
        }
        let given = |key| builder.get_config_value(&key).unwrap_or_default();
        let (endpoint, emulator) =
            (given(AzureConfigKey::Endpoint), given(AzureConfigKey::UseEmulator));
        let (client, retry) = client(endpoint.starts_with("http://") || emulator == "true");
        // Containers of two accounts may have the same name.
        let place = match given(AzureConfigKey::AccountName) {
            account if account.is_empty() => container.to_owned(),
            account => format!("{container} of {account}"),
        };
        let built = builder.with_client_options(client).with_retry(retry).build();
        finish(titled("az", &place, &endpoint), built)
    }
}
