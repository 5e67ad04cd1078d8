//! `buttress qgroup`, and `btrfs qgroup`: groups of subvolumes, with their usage and their limits.

mod table;

use buttress_control::order::{Group, QuotaAct, quota_group};

use super::quota::{self, At};
use crate::exit::{Exit, Failure, Result};
use crate::image::Devices;
use crate::size;
use crate::ui::Ui;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Verb {
    /// List groups: what they use, their limits and memberships.
    Show(Show),
    /// Limit what a group may use.
    Limit {
        /// Limit data after compression, which is what is limited anyway.
        #[arg(short)]
        compressed: bool,
        /// Limit only what no other group uses.
        #[arg(short)]
        exclusive: bool,
        /// The most, as 4G or 512M; none takes the limit away.
        size: String,
        /// The group, as 1/100 or the number of a subvolume; that of the subvolume at the place
        /// unless given. Then the place.
        #[arg(value_name = "[GROUP] IMG:/PATH | PATH", num_args = 1..=2, required = true)]
        target: Vec<std::ffi::OsString>,
        #[command(flatten)]
        devices: Devices,
    },
    /// Make a group, as 1/100.
    Create {
        #[arg(value_parser = quota_group)]
        group: u64,
        #[command(flatten)]
        at: At,
    },
    /// Remove a group that has no members.
    Destroy {
        #[arg(value_parser = quota_group)]
        group: u64,
        #[command(flatten)]
        at: At,
    },
    /// Remove the groups of subvolumes that are gone.
    ClearStale {
        #[command(flatten)]
        at: At,
    },
    /// Make a group a member of one of a higher level.
    Assign(Relation),
    /// End the membership of a group in another.
    Remove(Relation),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Relation {
    /// Count anew where that is needed; the default.
    #[arg(long, conflicts_with = "no_rescan")]
    rescan: bool,
    /// Leave counts inconsistent where that comes of it.
    #[arg(long)]
    no_rescan: bool,
    /// The member.
    #[arg(value_parser = quota_group)]
    child: u64,
    /// The group that it is a member of.
    #[arg(value_parser = quota_group)]
    parent: u64,
    #[command(flatten)]
    at: At,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Show {
    /// Show the groups that each is a member of.
    #[arg(short)]
    parents: bool,
    /// Show the members of each.
    #[arg(short)]
    children: bool,
    /// Show limits of what members use.
    #[arg(short = 'r')]
    max_referenced: bool,
    /// Show limits of what no other group uses.
    #[arg(short = 'e')]
    max_exclusive: bool,
    /// Only the group of the place, and those that it is a member of.
    #[arg(short = 'F')]
    all_of_place: bool,
    /// Only the group of the place.
    #[arg(short = 'f')]
    only_place: bool,
    /// Print bytes.
    #[arg(long)]
    raw: bool,
    /// Print sizes in units that fit, which is the default.
    #[arg(long, alias = "iec")]
    human_readable: bool,
    /// Commit before, which this program does anyway.
    #[arg(long)]
    sync: bool,
    /// Sort by qgroupid, rfer, excl, max_rfer, max_excl or path, with - in front for the other
    /// direction; several with commas.
    #[arg(long, value_delimiter = ',', allow_hyphen_values = true, value_parser = table::order)]
    sort: Vec<table::Order>,
    #[command(flatten)]
    at: At,
}

pub(crate) fn run(verb: Verb, ui: &Ui) -> Result<Exit> {
    let relate = |relation: &Relation, joins: bool| {
        let Relation { child, parent, no_rescan, at, .. } = relation;
        let (child, parent, rescan) = (*child, *parent, !no_rescan);
        let act = match joins {
            true => QuotaAct::Assign { child, parent, rescan },
            false => QuotaAct::Remove { child, parent, rescan },
        };
        match at.order(|_| act, ui)?.as_bool() {
            Some(true) => {
                let document = serde_json::json!({ "rescanned": true });
                quota::say(ui, &document, "Quota data changed, rescan scheduled")
            }
            _ if ui.json() => ui.document(&serde_json::json!({ "rescanned": false })),
            _ => Ok(()),
        }
    };
    match verb {
        Verb::Show(args) => show(&args, ui)?,
        Verb::Limit { exclusive, size, target, devices, .. } => {
            limit(exclusive, &size, target, devices, ui)?;
        }
        Verb::Create { group, at } => drop(at.order(|_| QuotaAct::Create { group }, ui)?),
        Verb::Destroy { group, at } => drop(at.order(|_| QuotaAct::Destroy { group }, ui)?),
        Verb::ClearStale { at } => drop(at.order(|_| QuotaAct::ClearStale, ui)?),
        Verb::Assign(relation) => relate(&relation, true)?,
        Verb::Remove(relation) => relate(&relation, false)?,
    }
    Ok(Exit::Success)
}

fn limit(
    exclusive: bool,
    size: &str,
    mut target: Vec<std::ffi::OsString>,
    devices: Devices,
    ui: &Ui,
) -> Result<()> {
    let usage = |what: String| Failure::new(Exit::Usage, what);
    let size = match size {
        "none" => None,
        size => Some(size::parse(size).map_err(usage)?),
    };
    let Some(place) = target.pop() else { return Err(usage("no place was given".to_owned())) };
    let group = match target.pop() {
        Some(text) => Some(quota_group(&text.to_string_lossy()).map_err(usage)?),
        None => None,
    };
    let at = At::of(place, devices);
    at.order(|named| QuotaAct::Limit { group, at: named.spot.clone(), size, exclusive }, ui)?;
    Ok(())
}

fn show(args: &Show, ui: &Ui) -> Result<()> {
    let found = args.at.show(|named| QuotaAct::ShowAt { at: named.spot.clone() }, ui)?;
    if !found.enabled {
        return Err(args.at.none());
    }
    if found.inconsistent {
        crate::ui::note("WARNING: qgroup data inconsistent, rescan recommended");
    }
    let mut groups = found.groups;
    if args.only_place || args.all_of_place {
        let own = format!("0/{}", found.subvolume.unwrap_or_default());
        let mut kept = vec![own];
        if args.all_of_place {
            add_ancestors(&groups, &mut kept);
        }
        groups.retain(|group| kept.contains(&group.qgroupid));
    }
    table::sort(&mut groups, &args.sort);
    if ui.json() {
        return ui.document(&serde_json::json!({ "qgroup-show": groups }));
    }
    for line in table::lines(args, &groups) {
        ui.line(line)?;
    }
    Ok(())
}

/// Adds the groups of which the last group is a member, directly or through other groups.
fn add_ancestors(groups: &[Group], kept: &mut Vec<String>) {
    let mut at = 0;
    while let Some(id) = kept.get(at) {
        let parents = groups.iter().filter(|group| group.qgroupid == *id);
        let parents: Vec<_> = parents.flat_map(|group| group.parents.clone()).collect();
        for parent in parents {
            if !kept.contains(&parent) {
                kept.push(parent);
            }
        }
        at += 1;
    }
}
