package main

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

type franzClient struct{ servers []string }

func (c *franzClient) open(options ...kgo.Opt) *kgo.Client {
	client, err := kgo.NewClient(append(options, kgo.SeedBrokers(c.servers...))...)
	fail(err)
	return client
}

func (c *franzClient) produce(ctx context.Context, first, count int) {
	client := c.open(kgo.DefaultProduceTopic(topic))
	defer client.Close()
	messages := make([]*kgo.Record, count)
	for i := range messages {
		key, value := fmt.Sprintf("key-%d", (first+i)%20), fmt.Sprintf("value-%d", first+i)
		messages[i] = &kgo.Record{Key: []byte(key), Value: []byte(value)}
	}
	fail(client.ProduceSync(ctx, messages...).FirstErr())
}

func (c *franzClient) member(ctx context.Context, name string, seen *seen, assigned chan<- int) {
	// what is assigned in all, since the cooperative protocol tells the changes only
	held := 0
	change := func(by int) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, changed map[string][]int32) {
			held += by * len(changed[topic])
			assigned <- held
		}
	}
	client := c.open(
		kgo.ConsumerGroup("go"), kgo.ConsumeTopics(topic), kgo.ClientID(name),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.HeartbeatInterval(100*time.Millisecond),
		kgo.OnPartitionsAssigned(change(1)), kgo.OnPartitionsRevoked(change(-1)), kgo.OnPartitionsLost(change(-1)),
		kgo.FetchMaxWait(200*time.Millisecond),
	)
	defer client.Close()
	for ctx.Err() == nil {
		client.PollFetches(ctx).EachRecord(func(record *kgo.Record) { seen.add(name, string(record.Value)) })
	}
	fail(client.CommitUncommittedOffsets(context.Background()))
}

func (c *franzClient) transactions(ctx context.Context, values, lost []string) {
	client := c.open(kgo.DefaultProduceTopic(payments), kgo.TransactionalID("franz-go"))
	defer client.Close()
	for _, step := range []struct {
		values []string
		end    kgo.TransactionEndTry
	}{{values[:2], kgo.TryCommit}, {lost, kgo.TryAbort}, {values[2:], kgo.TryCommit}} {
		fail(client.BeginTransaction())
		for _, value := range step.values {
			fail(client.ProduceSync(ctx, kgo.StringRecord(value)).FirstErr())
		}
		fail(client.EndTransaction(ctx, step.end))
	}
}

func (c *franzClient) committed(ctx context.Context, count int) []string {
	client := c.open(
		kgo.ConsumeTopics(payments), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.FetchMaxWait(200*time.Millisecond),
	)
	defer client.Close()
	var values []string
	for len(values) < count {
		fetches := client.PollFetches(ctx)
		fail(fetches.Err())
		fetches.EachRecord(func(record *kgo.Record) { values = append(values, string(record.Value)) })
	}
	return values
}
