//! Draws rates over time: a drawing shows a saw-tooth, which every mean hides.

use std::fmt::Write as _;

/// The rates of one subject in one run, sample by sample.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) what: String,
    pub(crate) unit: &'static str,
    pub(crate) subject: String,
    /// Seconds between two samples.
    pub(crate) step: f64,
    pub(crate) values: Vec<f64>,
}

const LEFT: f64 = 60.0;
const WIDTH: f64 = 680.0;
const HEIGHT: f64 = 90.0;
/// The distance between two charts.
pub(crate) const PITCH: f64 = HEIGHT + 40.0;

/// Draws one chart with its upper edge at `top`. The value `most` reaches that edge.
pub(crate) fn draw(out: &mut String, series: &Series, top: f64, most: f64, name: &str) {
    let last = series.values.len().saturating_sub(1).max(1) as f64;
    let (x, y) = (
        |index: usize| LEFT + WIDTH * index as f64 / last,
        |value: f64| top + HEIGHT * (1.0 - value / most.max(f64::MIN_POSITIVE)),
    );
    let mut points = String::new();
    for (index, value) in series.values.iter().enumerate() {
        // Writing into a string cannot fail.
        let _ = write!(points, "{:.1},{:.1} ", x(index), y(*value));
    }
    let bottom = top + HEIGHT;
    let seconds = last * series.step;
    let _ = writeln!(
        out,
        "<text x=\"6\" y=\"{:.1}\" font-weight=\"bold\">{name}</text>\
         <line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{bottom:.1}\" y2=\"{bottom:.1}\" stroke=\"#999\"/>\
         <line x1=\"{LEFT}\" x2=\"{LEFT}\" y1=\"{top:.1}\" y2=\"{bottom:.1}\" stroke=\"#999\"/>\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{most:.0}</text>\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{seconds:.1} s</text>\
         <polyline points=\"{points}\" fill=\"none\" stroke=\"#4a7ab5\" stroke-width=\"1.5\"/>",
        top - 6.0,
        LEFT + WIDTH,
        LEFT - 6.0,
        top + 10.0,
        LEFT + WIDTH,
        bottom + 14.0,
    );
}

impl Series {
    /// Whether the series is long enough for means of seconds.
    pub(crate) fn lasts_a_second(&self) -> bool {
        self.values.len() as f64 * self.step >= 1.0
    }

    /// Means of each second, in words.
    pub(crate) fn by_the_second(&self) -> String {
        let samples = ((1.0 / self.step).round() as usize).max(1);
        let mut out = format!("{}, {}: {}, second by second:", self.what, self.unit, self.subject);
        for second in self.values.chunks(samples) {
            let mean = second.iter().sum::<f64>() / second.len() as f64;
            // Writing into a string cannot fail.
            let _ = write!(out, " {mean:.0}");
        }
        out
    }
}
