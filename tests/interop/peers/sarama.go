package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"
)

type saramaClient struct{ servers []string }

func (c *saramaClient) config() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Interval = 50 * time.Millisecond
	config.Consumer.Group.Heartbeat.Interval = 100 * time.Millisecond
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Producer.Compression = sarama.CompressionSnappy
	return config
}

func (c *saramaClient) produce(_ context.Context, first, count int) {
	config := c.config()
	config.Producer.Idempotent = true
	config.Net.MaxOpenRequests = 1
	producer, err := sarama.NewSyncProducer(c.servers, config)
	fail(err)
	messages := make([]*sarama.ProducerMessage, count)
	for i := range messages {
		key, value := fmt.Sprintf("key-%d", (first+i)%20), fmt.Sprintf("value-%d", first+i)
		messages[i] = &sarama.ProducerMessage{
			Topic: topic, Key: sarama.StringEncoder(key), Value: sarama.StringEncoder(value),
		}
	}
	fail(producer.SendMessages(messages))
	fail(producer.Close())
}

type saramaMember struct {
	name     string
	seen     *seen
	assigned chan<- int
}

func (m *saramaMember) Setup(session sarama.ConsumerGroupSession) error {
	m.assigned <- len(session.Claims()[topic])
	return nil
}

func (m *saramaMember) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (m *saramaMember) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		m.seen.add(m.name, string(message.Value))
		session.MarkMessage(message, "")
	}
	return nil
}

func (c *saramaClient) member(ctx context.Context, name string, seen *seen, assigned chan<- int) {
	config := c.config()
	config.ClientID = name
	group, err := sarama.NewConsumerGroup(c.servers, "go", config)
	fail(err)
	for ctx.Err() == nil {
		if err := group.Consume(ctx, []string{topic}, &saramaMember{name, seen, assigned}); err != nil {
			if !errors.Is(err, context.Canceled) {
				fail(err)
			}
		}
	}
	fail(group.Close())
}

func (c *saramaClient) transactions(_ context.Context, values, lost []string) {
	config := c.config()
	config.Producer.Idempotent = true
	config.Producer.Transaction.ID = "sarama"
	config.Net.MaxOpenRequests = 1
	producer, err := sarama.NewSyncProducer(c.servers, config)
	fail(err)
	send := func(values []string) {
		fail(producer.BeginTxn())
		for i, value := range values {
			key := sarama.StringEncoder(fmt.Sprint(i))
			_, _, err := producer.SendMessage(&sarama.ProducerMessage{
				Topic: payments, Key: key, Value: sarama.StringEncoder(value),
			})
			fail(err)
		}
	}
	send(values[:2])
	fail(producer.CommitTxn())
	send(lost)
	fail(producer.AbortTxn())
	send(values[2:])
	fail(producer.CommitTxn())
	fail(producer.Close())
}

func (c *saramaClient) committed(_ context.Context, count int) []string {
	config := c.config()
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	consumer, err := sarama.NewConsumer(c.servers, config)
	fail(err)
	partition, err := consumer.ConsumePartition(payments, 0, sarama.OffsetOldest)
	fail(err)
	var values []string
	for len(values) < count {
		values = append(values, string((<-partition.Messages()).Value))
	}
	fail(partition.Close())
	fail(consumer.Close())
	return values
}
