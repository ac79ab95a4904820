// Reads groups from standard input and writes what Kafka's cooperative sticky assignor makes of them. Run it with
//     java -cp 'kafka-clients.jar:slf4j-api.jar' CooperativeOracle.java < cases
// A case consists of lines `topic NAME COUNT` and `member ID INSTANCE|- SUBSCRIPTION`, followed by `end`; SUBSCRIPTION is
// the member's metadata in JoinGroup, in hexadecimal digits. The output has for each member
// `subscription MEMBER HEX HEX HEX HEX`, its subscription as Java writes it in the versions 0 to 3,
// `whole MEMBER TOPIC:PARTITION …`, the assignment before partitions are withheld, `plan MEMBER TOPIC:PARTITION …`, the
// assignment, and `userdata MEMBER HEX HEX`, the user data before it and after it in generation 7; then `end`. If the
// assignor throws there is one line `failed CLASS` instead of the assignments.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;

import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.internals.AbstractStickyAssignor;
import org.apache.kafka.clients.consumer.internals.ConsumerProtocol;
import org.apache.kafka.common.TopicPartition;

public class CooperativeOracle {
    /** The algorithm of both sticky assignors, with the owned partitions as the cooperative one reads them. */
    static class Whole extends AbstractStickyAssignor {
        @Override public String name() { return "whole"; }

        @Override protected MemberData memberData(Subscription subscription) {
            try {
                Method read = CooperativeStickyAssignor.class.getDeclaredMethod("memberData", Subscription.class);
                read.setAccessible(true);
                return (MemberData) read.invoke(new CooperativeStickyAssignor(), subscription);
            } catch (NoSuchMethodException | IllegalAccessException | InvocationTargetException error) {
                throw new IllegalStateException(error);
            }
        }
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        Map<String, Integer> counts = new HashMap<>();
        Map<String, String> members = new TreeMap<>();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "topic" -> counts.put(words[1], Integer.parseInt(words[2]));
                case "member" -> members.put(words[1], line);
                case "end" -> {
                    answer(counts, members);
                    System.out.println("end");
                    System.out.flush();
                    counts = new HashMap<>();
                    members = new TreeMap<>();
                }
                default -> throw new IllegalArgumentException(line);
            }
        }
    }

    /** Returns the subscriptions as a leader decodes them; each assignor gets its own, as it reads from their buffers. */
    static Map<String, Subscription> subscriptions(Map<String, String> members) {
        Map<String, Subscription> found = new HashMap<>();
        members.forEach((member, line) -> {
            String[] words = line.split(" ");
            ByteBuffer metadata = ByteBuffer.wrap(HexFormat.of().parseHex(words[3]));
            Subscription subscription = ConsumerProtocol.deserializeSubscription(metadata);
            subscription.setGroupInstanceId(words[2].equals("-") ? Optional.empty() : Optional.of(words[2]));
            found.put(member, subscription);
        });
        return found;
    }

    @SuppressWarnings("removal")
    static void answer(Map<String, Integer> counts, Map<String, String> members) {
        new TreeMap<>(subscriptions(members)).forEach((member, subscription) -> {
            StringBuilder line = new StringBuilder("subscription ").append(member);
            for (short version = 0; version <= 3; version++) {
                line.append(' ').append(hex(ConsumerProtocol.serializeSubscription(subscription, version)));
            }
            System.out.println(line);
        });
        try {
            Map<String, List<TopicPartition>> whole = new Whole().assign(counts, subscriptions(members));
            Map<String, List<TopicPartition>> plan =
                new CooperativeStickyAssignor().assign(counts, subscriptions(members));
            print("whole", whole);
            print("plan", plan);
            new TreeMap<>(plan).forEach((member, partitions) -> {
                CooperativeStickyAssignor assignor = new CooperativeStickyAssignor();
                String before = hex(assignor.subscriptionUserData(Set.of()));
                assignor.onAssignment(
                    new Assignment(partitions), new ConsumerGroupMetadata("g", 7, member, Optional.empty())
                );
                System.out.println(
                    "userdata " + member + " " + before + " " + hex(assignor.subscriptionUserData(Set.of()))
                );
            });
        } catch (RuntimeException error) {
            System.out.println("failed " + error.getClass().getSimpleName());
        }
    }

    static void print(String kind, Map<String, List<TopicPartition>> plan) {
        new TreeMap<>(plan).forEach((member, partitions) -> {
            StringBuilder line = new StringBuilder(kind).append(' ').append(member);
            for (TopicPartition tp : partitions) {
                line.append(' ').append(tp.topic()).append(':').append(tp.partition());
            }
            System.out.println(line);
        });
    }

    static String hex(ByteBuffer buffer) {
        byte[] bytes = new byte[buffer.remaining()];
        buffer.duplicate().get(bytes);
        return HexFormat.of().formatHex(bytes);
    }
}
