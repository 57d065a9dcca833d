"""The data pipeline on Apache Spark: the data source `servicebus`, pipelines over messages and over
the journal, and the report. The rule: the only importer of pyspark, and nothing that only wants the
command line imports it here."""
