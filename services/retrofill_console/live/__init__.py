"""What happens on Kafka, read once and sent to every viewer."""
