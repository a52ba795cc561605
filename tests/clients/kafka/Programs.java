// Runs Kafka's own programs as they are, one after the other, since a start of Java costs more than most of them.
//
// java -cp JARS Programs.java. Each line of the input is {"program": CLASS, "arguments": [...], "input": TEXT}; the answer is a line
// {"status": EXIT, "out": TEXT, "err": TEXT}. What a program has done when its process ends is done before the answer.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.utils.Exit;

public class Programs {
    /** Thrown where a program would end its process. Some catch it, say so and end again: only the first end counts. */
    static class Ended extends RuntimeException {
    }

    /** How the program under way has ended, or null. */
    static Integer ended;

    /** A stream that programs may keep for ever: what they write goes to whoever runs. */
    static class Said extends OutputStream {
        private final ByteArrayOutputStream said = new ByteArrayOutputStream();
        private boolean over;

        @Override
        public synchronized void write(int octet) {
            write(new byte[] {(byte) octet}, 0, 1);
        }

        @Override
        public synchronized void write(byte[] bytes, int from, int size) {
            if (!over) {
                said.write(bytes, from, size);
            }
        }

        /** Nothing that is written after the program's end was said by it. */
        synchronized void end() {
            over = true;
        }

        synchronized String take() {
            String text = said.toString(StandardCharsets.UTF_8);
            said.reset();
            over = false;
            return text;
        }
    }

    static int run(String program, String[] arguments) throws Exception {
        List<Runnable> atEnd = new ArrayList<>();
        Exit.setShutdownHookAdder((name, hook) -> atEnd.add(hook));
        ended = null;
        try {
            Class.forName(program).getMethod("main", String[].class).invoke(null, (Object) arguments);
        } catch (InvocationTargetException thrown) {
            if (ended == null) {
                thrown.getCause().printStackTrace();
                ended = 1;
            }
        }
        atEnd.forEach(Runnable::run);
        return ended == null ? 0 : ended;
    }

    public static void main(String[] none) throws Exception {
        PrintStream answers = System.out;
        PrintStream failures = System.err;
        BufferedReader asked = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Said out = new Said();
        Said err = new Said();
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
        // Nobody else tells of what ends this Java itself, as wrong arguments do.
        Runtime.getRuntime().addShutdownHook(new Thread(() -> failures.print(out.take() + err.take())));
        Exit.Procedure end = (status, message) -> {
            if (ended == null) {
                ended = status;
                out.end();
                err.end();
            }
            throw new Ended();
        };
        Exit.setExitProcedure(end);
        Exit.setHaltProcedure(end);
        ObjectMapper json = new ObjectMapper();
        for (String line = asked.readLine(); line != null; line = asked.readLine()) {
            JsonNode call = json.readTree(line);
            String[] arguments = json.convertValue(call.get("arguments"), String[].class);
            InputStream input = new ByteArrayInputStream(call.path("input").asText().getBytes(StandardCharsets.UTF_8));
            System.setIn(input);
            int status = run(call.get("program").asText(), arguments);
            answers.println(json.writeValueAsString(Map.of("status", status, "out", out.take(), "err", err.take())));
            answers.flush();
        }
        System.exit(0);
    }
}
