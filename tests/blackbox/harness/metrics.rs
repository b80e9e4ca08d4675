//! One scrape of a Prometheus text page.

/// The samples of a page.
#[derive(Debug)]
pub struct Scrape(Vec<Sample>);

#[derive(Debug)]
struct Sample {
    name: String,
    labels: Vec<(String, String)>,
    value: f64,
}

impl Scrape {
    pub fn parse(page: &str) -> Self {
        Self(
            page.lines()
                .filter(|line| !line.starts_with('#') && !line.is_empty())
                .map(Sample::parse)
                .collect(),
        )
    }

    /// The sum of all samples of this name that carry at least these labels; 0 when there are none.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let wanted = self.0.iter().filter(|sample| sample.name == name && sample.carries(labels));
        // Not sum(): that of nothing is -0.0, which reads oddly in a failure.
        wanted.fold(0.0, |sum, sample| sum + sample.value)
    }
}

impl Sample {
    fn parse(line: &str) -> Self {
        let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no value in {line:?}"));
        let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
        let labels = labels.trim_end_matches('}').split("\",").filter(|label| !label.is_empty());
        let labels = labels.map(|label| {
            let (key, value) = label.split_once("=\"").unwrap_or_else(|| panic!("no label in {line:?}"));
            (key.to_owned(), value.trim_end_matches('"').to_owned())
        });
        let value = value.parse().unwrap_or_else(|_| panic!("no number in {line:?}"));
        Self { name: name.to_owned(), labels: labels.collect(), value }
    }

    fn carries(&self, labels: &[(&str, &str)]) -> bool {
        labels.iter().all(|(key, value)| self.labels.iter().any(|(k, v)| k == key && v == value))
    }
}
