//! Formats figures as tables for the terminal and in Markdown.

use std::fmt::Write as _;

use detector_bench::{Figure, Goal, Verdict};

/// Tables for the terminal.
pub(super) fn text(figures: &[Figure]) -> String {
    let mut text = String::new();
    for (group, figures) in groups(figures) {
        let _ = writeln!(text, "\n{group}");
        for figure in figures {
            let _ = writeln!(
                text,
                "  {:<62} {:>20}  {:<14} {}",
                figure.name,
                value(figure),
                goal(figure),
                verdict_cell(figure)
            );
            if figure.value.is_none() {
                let _ = writeln!(text, "      {}", figure.note);
            }
        }
    }
    text
}

/// Tables in Markdown, one section per group.
pub(super) fn markdown(figures: &[Figure]) -> String {
    let mut text = String::new();
    for (group, figures) in groups(figures) {
        let _ = writeln!(
            text,
            "### {group}\n\n| what | measured | goal | | how |\n| --- | ---: | ---: | --- | --- |"
        );
        for figure in figures {
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} |",
                cell(&figure.name),
                value(figure),
                goal(figure),
                verdict_cell(figure),
                cell(&figure.note)
            );
        }
        text.push('\n');
    }
    text
}

/// A sentence with the number of goals met, the names of those missed, and those that the measurement could not decide.
pub(super) fn verdict(figures: &[Figure]) -> String {
    let (mut met, mut missed, mut unknown) = (0, Vec::new(), Vec::new());
    for figure in figures {
        match figure.verdict() {
            None => {}
            Some(Verdict::Met) => met += 1,
            Some(Verdict::Missed) => missed.push(figure.name.as_str()),
            Some(Verdict::Unknown(_)) => unknown.push(figure.name.as_str()),
        }
    }
    let goals = met + missed.len() + unknown.len();
    if met == goals {
        return format!("All {met} goals met.");
    }
    let mut text = format!("{met} of {goals} goals met");
    for (kind, names) in [("missed", missed), ("not known well enough", unknown)] {
        if !names.is_empty() {
            let _ = write!(text, "; {kind}: {}", names.join("; "));
        }
    }
    text + "."
}

/// Figures by group, in order of each group's first figure.
fn groups(figures: &[Figure]) -> Vec<(&str, Vec<&Figure>)> {
    let mut groups: Vec<(&str, Vec<&Figure>)> = Vec::new();
    for figure in figures {
        match groups.iter_mut().find(|(group, _)| *group == figure.group) {
            Some((_, members)) => members.push(figure),
            None => groups.push((&figure.group, vec![figure])),
        }
    }
    groups
}

fn value(figure: &Figure) -> String {
    let Some(value) = figure.value else {
        return "–".to_owned();
    };
    match figure.uncertainty {
        None => format!("{} {}", number(value), figure.unit),
        Some(uncertainty) => {
            let value = fixed(value, decimals(uncertainty));
            format!("{value} ± {} {}", bound(uncertainty), figure.unit)
        }
    }
}

fn goal(figure: &Figure) -> String {
    match figure.goal {
        None => String::new(),
        Some(Goal::Below(most)) => format!("< {}", number(most)),
        Some(Goal::AtMost(most)) => format!("≤ {}", number(most)),
        Some(Goal::AtLeast(least)) => format!("≥ {}", number(least)),
    }
}

fn verdict_cell(figure: &Figure) -> String {
    match figure.verdict() {
        None => String::new(),
        Some(Verdict::Met) => "met".to_owned(),
        Some(Verdict::Missed) => "**missed**".to_owned(),
        Some(Verdict::Unknown(uncertainty)) => {
            format!(
                "not known better than ± {} {}",
                bound(uncertainty),
                figure.unit
            )
        }
    }
}

/// Formats a number with about three significant digits and thousands separators.
fn number(value: f64) -> String {
    let size = value.abs();
    let decimals = match size {
        _ if size >= 100.0 || value == value.trunc() => 0,
        _ if size >= 10.0 => 1,
        _ if size >= 0.1 => 2,
        _ => 3,
    };
    fixed(value, decimals)
}

/// Formats an uncertainty; the largest number stands for one that is not known.
fn bound(uncertainty: f64) -> String {
    if uncertainty == f64::MAX {
        "∞".to_owned()
    } else {
        fixed(uncertainty, decimals(uncertainty))
    }
}

/// Decimals of an uncertainty, and of the value it belongs to: those of two significant digits.
fn decimals(uncertainty: f64) -> usize {
    match uncertainty {
        _ if uncertainty >= 10.0 => 0,
        _ if uncertainty >= 1.0 => 1,
        _ if uncertainty >= 0.1 => 2,
        _ => 3,
    }
}

/// Formats a number with this number of decimals and thousands separators.
fn fixed(value: f64, decimals: usize) -> String {
    let plain = format!("{:.decimals$}", value.abs());
    let (whole, fraction) = plain
        .split_once('.')
        .map_or((plain.as_str(), None), |(whole, fraction)| {
            (whole, Some(fraction))
        });
    let mut text = String::new();
    if value < 0.0 {
        text.push('−');
    }
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if let Some(fraction) = fraction {
        text.push('.');
        text.push_str(fraction);
    }
    text
}

/// Escapes text for a table cell; notes hold output of other programs.
fn cell(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect::<String>()
        .replace('\\', "\\\\")
        .replace('|', "\\|")
        .replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::{cell, markdown, number, text, verdict};
    use detector_bench::{Figure, Goal};

    fn figures() -> Vec<Figure> {
        vec![
            Figure::new("Latency", "p50", 57.4, "µs").goal(Goal::Below(60.0)),
            Figure::new("Latency", "p99", 1234.0, "µs").goal(Goal::Below(1000.0)),
            Figure::absent("Peers", "arpwatch", "did not start | at all"),
        ]
    }

    #[test]
    fn row_shows_goal_and_verdict() {
        let table = markdown(&figures());
        assert!(table.contains("| p50 | 57.4 µs | < 60 | met |"), "{table}");
        assert!(
            table.contains("| p99 | 1,234 µs | < 1,000 | **missed** |"),
            "{table}"
        );
        assert_eq!(verdict(&figures()), "1 of 2 goals met; missed: p99.");
    }

    #[test]
    fn row_shows_when_the_uncertainty_includes_the_goal() {
        let loss = |name: &str, value| {
            Figure::new("Traffic", name, value, "%")
                .uncertainty(0.25)
                .goal(Goal::AtMost(0.3))
        };
        let figures = [loss("UDP", 0.01), loss("TCP", 0.2), loss("ICMP", 1.0)];
        let table = markdown(&figures);
        for row in [
            "| UDP | 0.01 ± 0.25 % | ≤ 0.30 | met |",
            "| TCP | 0.20 ± 0.25 % | ≤ 0.30 | not known better than ± 0.25 % |",
            "| ICMP | 1.00 ± 0.25 % | ≤ 0.30 | **missed** |",
        ] {
            assert!(table.contains(row), "{table}");
        }
        assert_eq!(
            verdict(&figures),
            "1 of 3 goals met; missed: ICMP; not known well enough: TCP."
        );
    }

    #[test]
    fn unknown_uncertainty_is_infinite() {
        let figure = Figure::new("Traffic", "UDP", 1.0, "%").uncertainty(f64::NAN);
        let table = markdown(&[figure.goal(Goal::AtMost(2.0))]);
        let row = "| UDP | 1 ± ∞ % | ≤ 2 | not known better than ± ∞ % |";
        assert!(table.contains(row), "{table}");
    }

    #[test]
    fn unmeasured_figure_shows_the_reason() {
        assert!(text(&figures()).contains("did not start | at all"));
        assert!(markdown(&figures()).contains("| arpwatch | – |  |  | did not start \\| at all |"));
    }

    #[test]
    fn numbers_have_three_significant_digits() {
        let shown = [0.034, 1.5, 20.0, 57.44, 1_234_567.8, -0.42].map(number);
        assert_eq!(shown, ["0.034", "1.50", "20", "57.4", "1,234,568", "−0.42"]);
    }

    #[test]
    fn cell_text_is_escaped() {
        assert_eq!(cell("a|b\nc<d"), "a\\|b c&lt;d");
    }
}
