//! Balances: parses and prints their filters, and makes the JSON document of a balance.

use buttress_format::{DeviceId, Profile};
use buttress_fs::{BalanceOptions, BalanceProgress, Filesystem, Filter};
use serde_json::{Value, json};

use crate::exit::{Exit, Failure, Result};
use crate::size;

/// The JSON document of a finished or paused balance.
pub(super) fn document(done: &BalanceProgress) -> Value {
    json!({
        "completed": done.completed,
        "expected": done.expected,
        "considered": done.considered,
        "moved": done.moved,
        "paused": done.is_paused,
    })
}

/// The state of a volume's balance as JSON. `elsewhere` means that another process runs the
/// balance.
pub fn status_of(fs: &Filesystem, elsewhere: bool) -> buttress_fs::Result<Value> {
    let kept = fs.balance_status()?;
    let word = match &kept {
        _ if elsewhere => "running",
        Some(balance) if balance.is_running => "running",
        Some(_) => "paused",
        None => "none",
    };
    let options = kept.iter().map(|balance| &balance.options);
    let kinds = options.flat_map(|options| {
        [("data", &options.data), ("metadata", &options.metadata), ("system", &options.system)]
    });
    let filters: serde_json::Map<_, _> = kinds
        .filter_map(|(kind, filter)| Some((kind.to_owned(), words(filter.as_ref()?).into())))
        .collect();
    let mut told = json!({ "status": word, "filters": filters });
    if let Some(balance) = kept.filter(|balance| balance.is_running) {
        told["progress"] = document(&balance.progress);
    }
    Ok(told)
}

/// Prints a filter in the syntax of `balance start`.
fn words(filter: &Filter) -> String {
    let range = |name: &str, range: Option<(u64, u64)>| {
        range.map(|(from, to)| match to {
            u64::MAX => format!("{name}={from}.."),
            to => format!("{name}={from}..{to}"),
        })
    };
    let list = |list: &Vec<Profile>| {
        let names: Vec<_> = list.iter().map(|one| one.name().to_ascii_lowercase()).collect();
        format!("profiles={}", names.join("|"))
    };
    let parts = [
        filter.profiles.as_ref().map(list),
        range("usage", filter.usage),
        filter.devid.map(|id| format!("devid={id}")),
        range("vrange", filter.vrange),
        range("drange", filter.drange),
        range("stripes", filter.stripes),
        filter.limit.map(|most| format!("limit={most}")),
        filter.convert.map(|to| format!("convert={}", to.name().to_ascii_lowercase())),
        filter.soft.then(|| "soft".to_owned()),
    ];
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    if parts.is_empty() { "all".to_owned() } else { parts.join(",") }
}

/// Refuses to reduce the number of metadata copies without `--force`, as btrfs-progs does.
pub(super) fn refuse_fewer_copies(
    fs: &Filesystem,
    options: &BalanceOptions,
) -> buttress_fs::Result<Result<()>> {
    let target = options.metadata.as_ref().and_then(|filter| filter.convert);
    let Some(target) = target else { return Ok(Ok(())) };
    let now = fs.info()?.usage.kinds.into_iter();
    let now = now.filter(|kind| kind.flags.has(buttress_format::BlockGroupFlags::METADATA));
    let safest = now.filter_map(|kind| Profile::of(kind.flags)).map(|p| p.spread().copies).max();
    if safest.unwrap_or(0) > target.spread().copies {
        let what =
            format!("{target} keeps fewer copies of metadata than there are; --force does it");
        return Ok(Err(Failure::new(Exit::Refused, what)));
    }
    Ok(Ok(()))
}

/// Parses the filters in the syntax of btrfs-progs. Without a filter, all groups are balanced.
pub fn options(
    data: &Option<String>,
    metadata: &Option<String>,
    system: &Option<String>,
) -> Result<BalanceOptions> {
    let parse = |text: &Option<String>| text.as_deref().map(filter).transpose();
    let mut options =
        BalanceOptions { data: parse(data)?, metadata: parse(metadata)?, system: parse(system)? };
    if options == BalanceOptions::default() {
        return Ok(BalanceOptions::full());
    }
    if options.system.is_none() {
        options.system.clone_from(&options.metadata);
    }
    Ok(options)
}

/// Reads filters in the words of btrfs-progs.
fn filter(text: &str) -> Result<Filter> {
    let mut filter = Filter::default();
    for word in text.split(',').map(str::trim).filter(|word| !word.is_empty() && *word != "all") {
        let refuse = |why: &str| Failure::new(Exit::Usage, format!("filter {word:?}: {why}"));
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        let number = |text: &str| size::parse(text).map_err(|why| refuse(&why));
        let profile = |text: &str| {
            Profile::parse(text).ok_or_else(|| refuse("single, dup, raid0, raid1, and so on"))
        };
        // Accepts A..B, ..B and A... Also accepts one number if `alone` turns it into a range.
        let range = |alone: Option<&dyn Fn(u64) -> (u64, u64)>| match value.split_once("..") {
            Some((low, high)) => Ok((
                if low.is_empty() { 0 } else { number(low)? },
                if high.is_empty() { u64::MAX } else { number(high)? },
            )),
            None => match alone {
                Some(alone) => Ok(alone(number(value)?)),
                None => Err(refuse("a range, as in 1g..2g")),
            },
        };
        match name {
            "profiles" => {
                filter.profiles = Some(value.split('|').map(profile).collect::<Result<_>>()?);
            }
            "usage" => filter.usage = Some(range(Some(&|most| (0, most)))?),
            "devid" => filter.devid = Some(DeviceId(number(value)?)),
            "vrange" => filter.vrange = Some(range(None)?),
            "drange" => filter.drange = Some(range(None)?),
            "stripes" => filter.stripes = Some(range(Some(&|only| (only, only)))?),
            "limit" => filter.limit = Some(range(Some(&|most| (0, most)))?.1),
            "convert" => filter.convert = Some(profile(value)?),
            "soft" => filter.soft = true,
            _ => {
                let known = "profiles, usage, devid, vrange, drange, stripes, limit, convert, soft";
                return Err(refuse(&format!("not known; known are {known}")));
            }
        }
    }
    Ok(filter)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Filters have the same meaning as in btrfs-progs.
    #[test]
    fn filters_parse() {
        let found =
            filter("usage=50,convert=raid1,soft,vrange=1m..,profiles=single|dup").expect("good");
        assert_eq!(found.usage, Some((0, 50)));
        assert_eq!(found.convert, Some(Profile::Raid1));
        assert_eq!(found.vrange, Some((1 << 20, u64::MAX)));
        assert_eq!(found.profiles, Some(vec![Profile::Single, Profile::Dup]));
        assert!(found.soft);
        assert!(filter("usage=x").is_err());
        assert!(filter("colour=red").is_err());
        assert_eq!(filter("all").expect("everything"), Filter::default());
        // Printed filters parse back to the same filters.
        assert_eq!(filter(&words(&found)).expect("its own words"), found);
        assert_eq!(words(&Filter::default()), "all");
    }
}
