//! Files of cases: YAML → cases, or every problem with its place.

use std::fs;
use std::io::Read as _;
use std::path::Path;

use tidegate_engine::decision::Code;
use tidegate_engine::rules::parse_duration_nanos;
use tidegate_yaml::{Budget, Content, Document, NodeId, Place};

use super::{Case, CaseFile, CaseRequest, Expected, HttpRequest, Problem, Step, When};

/// The longest file, in bytes.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The most requests of one step.
const TIMES_MAX: u32 = 10_000_000;

/// What a reader of a value returns when it has added a problem.
type Read<T> = Option<T>;

/// Reads a file. The path of its rules is relative to it.
pub(super) fn read(path: &Path) -> Result<CaseFile, Vec<Problem>> {
    let problem_of_file =
        |what: String| vec![Problem { at: None, what: format!("{}: {what}", path.display()) }];
    let mut text = String::new();
    let file = fs::File::open(path).map_err(|error| problem_of_file(error.to_string()))?;
    file.take(FILE_BYTES_MAX + 1)
        .read_to_string(&mut text)
        .map_err(|error| problem_of_file(error.to_string()))?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(problem_of_file(format!(
            "the file is too long (expected at most {FILE_BYTES_MAX} bytes)"
        )));
    }
    let name = path.display().to_string();
    let mut file = parse(&name, &text)?;
    file.rules = path.parent().unwrap_or(Path::new("")).join(&file.rules);
    Ok(file)
}

/// Parses the text of a file.
pub(super) fn parse(name: &str, text: &str) -> Result<CaseFile, Vec<Problem>> {
    let placed =
        |(at, what): (Place, String)| Problem { at: Some((name.to_owned(), at.line, at.column)), what };
    let mut budget = Budget::of_set(FILE_BYTES_MAX as usize);
    let document = Document::parse(text, &mut budget).map_err(|problem| vec![placed(problem)])?;
    let mut reader = Reader { document: &document, problems: Vec::new() };
    let file = match document.root {
        Some(root) => reader.file(root),
        None => reader.wrong(Place::START, "the file is empty (expected `rules` and `cases`)"),
    };
    match file {
        Some(file) if reader.problems.is_empty() => Ok(file),
        _ => Err(reader.problems.into_iter().map(placed).collect()),
    }
}

/// Reads values, and keeps what is wrong with them.
struct Reader<'d> {
    document: &'d Document<'d>,
    problems: Vec<(Place, String)>,
}

impl<'d> Reader<'d> {
    fn wrong<T>(&mut self, at: Place, what: impl Into<String>) -> Read<T> {
        self.problems.push((at, what.into()));
        None
    }

    fn at(&self, id: NodeId) -> Place {
        self.document.node(id).at
    }

    /// The keys of a mapping, which have to be among these, and its values.
    fn fields<const N: usize>(&mut self, id: NodeId, known: [&str; N]) -> Read<[Option<NodeId>; N]> {
        let mut found = [None; N];
        for (key, value) in self.mapping(id)? {
            let name = self.text(key)?;
            match known.iter().position(|known| *known == name) {
                Some(index) if found[index].is_none() => found[index] = Some(value),
                Some(_) => return self.wrong(self.at(key), format!("`{name}` comes twice (expected once)")),
                None => {
                    let what = format!("unknown key `{name}` (expected {})", known.join(", "));
                    return self.wrong(self.at(key), what);
                }
            }
        }
        Some(found)
    }

    fn mapping(&mut self, id: NodeId) -> Read<Vec<(NodeId, NodeId)>> {
        match &self.document.node(id).content {
            Content::Mapping(pairs) => Some(pairs.clone()),
            _ => self.wrong(self.at(id), "expected a mapping"),
        }
    }

    fn list(&mut self, id: NodeId) -> Read<Vec<NodeId>> {
        match &self.document.node(id).content {
            Content::Sequence(ids) => Some(ids.clone()),
            _ => self.wrong(self.at(id), "expected a list"),
        }
    }

    fn text(&mut self, id: NodeId) -> Read<&'d str> {
        match &self.document.node(id).content {
            Content::Scalar(scalar) => Some(&scalar.text),
            _ => self.wrong(self.at(id), "expected a text"),
        }
    }

    fn parsed<T>(&mut self, id: NodeId, expected: &str, parse: impl Fn(&str) -> Option<T>) -> Read<T> {
        let text = self.text(id)?;
        match parse(text) {
            Some(value) => Some(value),
            None => self.wrong(self.at(id), format!("`{text}` (expected {expected})")),
        }
    }

    fn duration(&mut self, id: NodeId) -> Read<u64> {
        self.parsed(id, "a duration, such as 0s, 100ms, 61s, 1h30m", duration)
    }

    fn file(&mut self, id: NodeId) -> Read<CaseFile> {
        let [rules, domain, cases] = self.fields(id, ["rules", "domain", "cases"])?;
        let (Some(rules), Some(cases)) = (rules, cases) else {
            return self.wrong(self.at(id), "`rules` or `cases` is missing (expected both)");
        };
        let rules = self.text(rules)?.into();
        let domain = domain.and_then(|domain| self.text(domain));
        let ids = self.list(cases)?;
        if ids.is_empty() {
            return self.wrong(self.at(cases), "there is no case (expected one)");
        }
        // The steps of every case, so that all problems are reported.
        let cases = ids.into_iter().map(|id| self.case(id, domain)).collect::<Vec<_>>();
        Some(CaseFile { rules, cases: cases.into_iter().flatten().collect() })
    }

    fn case(&mut self, id: NodeId, domain: Option<&str>) -> Read<Case> {
        let [name, steps] = self.fields(id, ["name", "steps"])?;
        let (Some(name), Some(steps)) = (name, steps) else {
            return self.wrong(self.at(id), "`name` or `steps` is missing (expected both)");
        };
        let name = self.text(name)?.to_owned();
        let ids = self.list(steps)?;
        if ids.is_empty() {
            return self.wrong(self.at(steps), "there is no step (expected one)");
        }
        let steps = ids.into_iter().map(|id| self.step(id, domain)).collect::<Vec<_>>();
        let steps: Vec<_> = steps.into_iter().flatten().collect();
        let mut last = 0;
        for step in &steps {
            last = match step.when {
                When::At(at) if at < last => {
                    return self.wrong(step.at, "time goes back (expected steps in their order)");
                }
                When::At(at) => at,
                When::After(after) => last.saturating_add(after),
            };
            last = last.saturating_add(step.every_nanos.saturating_mul(u64::from(step.times) - 1));
        }
        Some(Case { name, at: self.at(id), steps })
    }

    fn step(&mut self, id: NodeId, domain: Option<&str>) -> Read<Step> {
        let known = ["at", "after", "every", "domain", "request", "http", "hits", "expect"];
        let [at, after, every, own_domain, request, http, hits, expect] = self.fields(id, known)?;
        let when = match (at, after) {
            (Some(at), None) => When::At(self.duration(at)?),
            (None, Some(after)) => When::After(self.duration(after)?),
            (None, None) => When::After(0),
            (Some(_), Some(after)) => {
                return self.wrong(self.at(after), "`at` and `after` (expected one of them)");
            }
        };
        let (every_nanos, times) = match every {
            Some(every) => self.parsed(every, "an interval and a number, such as `1s x 100`", repetition)?,
            None => (0, 1),
        };
        let asked = match (request, http) {
            (Some(request), None) => CaseRequest::Descriptors(self.descriptors(request)?),
            (None, Some(http)) => CaseRequest::Http(self.http(http)?),
            _ => return self.wrong(self.at(id), "expected `request` or `http`"),
        };
        let hits = match hits {
            Some(hits) => self.parsed(hits, "a number of hits", |text| text.parse().ok())?,
            None => 1,
        };
        let Some(expect) = expect else { return self.wrong(self.at(id), "`expect` is missing") };
        let expected = self.expected(expect)?;
        let domain = match own_domain {
            Some(own) => Some(self.text(own)?),
            None => domain,
        };
        Some(Step {
            at: self.at(id),
            when,
            times,
            every_nanos,
            domain: domain.map(str::to_owned),
            asked,
            hits,
            expected,
        })
    }

    /// A descriptor, or a list of them.
    fn descriptors(&mut self, id: NodeId) -> Read<Vec<Vec<(String, String)>>> {
        let ids = match &self.document.node(id).content {
            Content::Sequence(ids) if !ids.is_empty() => ids.clone(),
            _ => vec![id],
        };
        ids.into_iter().map(|id| self.pairs(id)).collect()
    }

    fn pairs(&mut self, id: NodeId) -> Read<Vec<(String, String)>> {
        let pairs = self.mapping(id)?;
        pairs
            .into_iter()
            .map(|(key, value)| Some((self.text(key)?.to_owned(), self.text(value)?.to_owned())))
            .collect()
    }

    fn http(&mut self, id: NodeId) -> Read<HttpRequest> {
        let mut request = HttpRequest::default();
        let [method, path, host, address, headers] =
            self.fields(id, ["method", "path", "host", "address", "headers"])?;
        for (field, value) in
            [(&mut request.method, method), (&mut request.path, path), (&mut request.authority, host)]
        {
            if let Some(value) = value {
                *field = self.text(value)?.to_owned();
            }
        }
        if let Some(address) = address {
            request.address = self.parsed(address, "an address", |text| text.parse().ok())?;
        }
        if let Some(headers) = headers {
            let small = |(name, value): (String, String)| (name.to_ascii_lowercase(), value);
            request.headers = self.pairs(headers)?.into_iter().map(small).collect();
        }
        Some(request)
    }

    fn expected(&mut self, id: NodeId) -> Read<Expected> {
        if matches!(self.document.node(id).content, Content::Scalar(_)) {
            return Some(Expected { code: Some(self.code(id)?), ..Expected::default() });
        }
        let [code, rule, remaining, wait] = self.fields(id, ["code", "rule", "remaining", "wait"])?;
        let mut expected = Expected::default();
        if let Some(code) = code {
            expected.code = Some(self.code(code)?);
        }
        if let Some(rule) = rule {
            expected.rule = Some(self.text(rule)?.to_owned());
        }
        if let Some(remaining) = remaining {
            expected.remaining = Some(self.parsed(remaining, "a number of hits", |text| text.parse().ok())?);
        }
        if let Some(wait) = wait {
            let seconds = |text: &str| duration(text).filter(|nanos| nanos.is_multiple_of(1_000_000_000));
            let nanos = self.parsed(wait, "a duration in whole seconds, such as 30s", seconds)?;
            expected.wait_secs = Some(nanos / 1_000_000_000);
        }
        Some(expected)
    }

    fn code(&mut self, id: NodeId) -> Read<Code> {
        self.parsed(id, "OK or OVER_LIMIT", |text| {
            [Code::Ok, Code::OverLimit].into_iter().find(|code| code.name() == text)
        })
    }
}

/// A duration; also in milliseconds, and 0.
fn duration(text: &str) -> Option<u64> {
    match text.strip_suffix("ms") {
        Some(millis) => millis.parse::<u64>().ok()?.checked_mul(1_000_000),
        None if matches!(text, "0" | "0s") => Some(0),
        None => parse_duration_nanos(text),
    }
}

/// `1s x 100`, also with `×`.
fn repetition(text: &str) -> Option<(u64, u32)> {
    let (every, times) = text.split_once(['x', '×'])?;
    let times = times.trim().parse().ok().filter(|times| (1..=TIMES_MAX).contains(times))?;
    Some((duration(every.trim())?, times))
}
