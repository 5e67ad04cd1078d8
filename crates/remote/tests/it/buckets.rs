//! Clones in other buckets of a service.

use std::collections::BTreeMap;
use std::sync::Arc;

use buttress_block::{Device, MemoryDevice};
use buttress_remote::store::buckets::Buckets;
use buttress_remote::store::simulated::SimStore;
use buttress_remote::store::{Store, StoreError};
use buttress_remote::{Secret, Site};

use crate::{options, store};

const LEN: u64 = 4 << 20;

/// The buckets of a service, by name.
type Service = BTreeMap<String, Arc<SimStore>>;

fn service(names: &[&str]) -> Arc<Service> {
    Arc::new(names.iter().map(|name| ((*name).to_owned(), store(7))).collect())
}

fn site(service: &Arc<Service>, bucket: &str, prefix: &str, secret: Option<&str>) -> Site {
    let own = Arc::clone(service);
    let open = move |name: &str| -> Result<Arc<dyn Store>, StoreError> {
        let found = own.get(name).map(|store| Arc::clone(store) as Arc<dyn Store>);
        found.ok_or_else(|| StoreError::Refused(format!("no bucket {name}")))
    };
    let buckets = Arc::new(Buckets::new(bucket, open).expect("a bucket"));
    let site = Site::in_buckets(buckets, prefix, options());
    match secret {
        Some(text) => site.encrypted(Secret::new(text.into()).expect("some bytes")),
        None => site,
    }
}

/// Writes a part of the device, and compares all of it with the model.
fn write(site: &Site, model: &MemoryDevice, at: u64, with: u8) {
    let device = site.open().expect("a volume");
    let content = vec![with; 256 << 10];
    device.write_at(at, &content).expect("within");
    model.write_at(at, &content).expect("within");
    same(&device, model);
    device.close().expect("a good store");
    let mut reading = site.clone();
    reading.options.write = false;
    same(&reading.open().expect("a volume"), model);
}

fn same(device: &dyn Device, model: &MemoryDevice) {
    let (mut found, mut right) = (vec![1; LEN as usize], vec![0; LEN as usize]);
    device.read_at(0, &mut found).expect("whole");
    model.read_at(0, &mut right).expect("whole");
    assert!(found == right, "the content differs");
}

/// A clone in another bucket shares the objects of its base. So does a clone of it in a third
/// bucket, and one back in the first. Each is written by itself. Deleting the bases is refused, and
/// after the clones are gone nothing is left in any bucket.
#[test]
fn clones_in_other_buckets_share_and_stay_apart() {
    for secret in [None, Some("one")] {
        let service = service(&["a", "b", "c"]);
        let places = [("a", "v"), ("b", "w"), ("c", ""), ("a", "x/y")];
        let sites = places.map(|(bucket, prefix)| site(&service, bucket, prefix, secret));
        drop(sites[0].create(LEN).expect("an honest store"));
        service["a"].advance_ms(60_000);
        let mut models = vec![MemoryDevice::new(LEN)];
        write(&sites[0], &models[0], 0, 1);
        for number in 1..sites.len() {
            sites[number - 1].clone_to(&sites[number]).expect("a bucket of the service");
            models.push(models[number - 1].fork());
            let (bucket, prefix) = places[number];
            let is_copy = |name: &String| name.starts_with(&format!("{prefix}/data/"));
            assert!(!service[bucket].names().iter().any(is_copy), "data was copied");
            write(&sites[number], &models[number], (number as u64) << 20, number as u8 + 1);
        }
        for (number, site) in sites.iter().enumerate() {
            write(site, &models[number], 3 << 20, number as u8 + 10);
        }
        for number in (0..sites.len()).rev() {
            if number > 0 {
                sites[number - 1].delete().expect_err("a clone needs it");
            }
            sites[number].delete().expect("nothing needs it");
        }
        for (name, bucket) in &*service {
            assert!(bucket.names().is_empty(), "{name}: {:?}", bucket.names());
        }
    }
}

/// A clone is refused if its place cannot read the base, and leaves nothing. There may be no such
/// bucket, or a bucket of that name with other objects.
#[test]
fn another_service_is_refused() {
    for (names, why) in [(&["b"][..], "no bucket a"), (&["a", "b"][..], "no such object")] {
        let (one, other) = (service(&["a"]), service(names));
        let base = site(&one, "a", "v", None);
        drop(base.create(LEN).expect("an honest store"));
        let before = one["a"].names();
        let error = base.clone_to(&site(&other, "b", "w", None)).expect_err("not reached");
        assert!(error.to_string().contains(why), "{error}");
        assert_eq!(one["a"].names(), before);
        assert!(other.values().all(|bucket| bucket.names().is_empty()));
    }
}
