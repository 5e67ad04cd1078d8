//! `btrfs filesystem du`.

use std::ffi::OsString;

use buttress_control::named::Named;
use buttress_survey::ShareRow;
use buttress_words::units::Units;

use crate::client;
use crate::commands::du::below;
use crate::exit::{Context, Exit, Result};
use crate::image::Devices;
use crate::location::show;
use crate::order::{Order, SurveyRequest};
use crate::ui::Ui;

/// Prints for each file and folder how much space it takes alone and how much it shares.
pub(super) fn run(units: Units, summarize: bool, places: &[OsString], ui: &Ui) -> Result<Exit> {
    let line = |[total, exclusive, shared]: [&str; 3], name: &str| {
        ui.line(format!("{total:>10}  {exclusive:>10}  {shared:>10}  {name}"))
    };
    line(["Total", "Exclusive", "Set shared"], "Filename")?;
    for place in places {
        let Named { volume, spot, .. } = Named::parse(place)?;
        let order = Order::Survey { at: spot, request: SurveyRequest::Shares };
        let done = client::run(&order, &volume, &Devices::default(), "du", ui)?;
        let mut rows: Vec<ShareRow> = serde_json::from_value(done).context(|| "the answer")?;
        rows.retain(|row| !summarize || row.set_shared.is_some());
        for row in &rows {
            let shared = row.set_shared.map_or_else(|| "-".to_owned(), |bytes| units.show(bytes));
            let sizes = [&units.show(row.total), &units.show(row.exclusive), &shared];
            line(sizes.map(String::as_str), &show(&below(place, &row.path)))?;
        }
    }
    Ok(Exit::Success)
}
